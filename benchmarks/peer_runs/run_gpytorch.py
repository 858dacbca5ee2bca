"""GPyTorch: softmax SVGP and Dirichlet-based classification, in single precision as is its default.

SVGP: one latent per class, inducing points among the rows and learnt, softmax with mixing weights, Adam on all rows at once.
Dirichlet: exact regression on transformed labels, one kernel per class, as in the tutorial "GP Regression on Classification
Labels"; probabilities from 256 draws, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from driver import main
from gpytorch.distributions import MultivariateNormal

LEARNING_RATE = 0.1
SVGP_STEPS = 300
DIRICHLET_STEPS = 200
INDUCING = 100
DRAWS = 256


class SVGP(gpytorch.models.ApproximateGP):
    """One latent process per class, all with one kernel."""

    def __init__(self, Z: Any, n_classes: int, kernel: Any) -> None:
        batch = torch.Size([n_classes])
        q = gpytorch.variational.CholeskyVariationalDistribution(Z.shape[0], batch_shape=batch)
        strategy = gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=n_classes))
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = kernel

    def forward(self, x: Any) -> Any:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Dirichlet(gpytorch.models.ExactGP):
    """One regression per class."""

    def __init__(self, X: Any, targets: Any, likelihood: Any, kernel: Any) -> None:
        super().__init__(X, targets, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=targets.shape[:1])
        self.covar_module = kernel

    def forward(self, x: Any) -> Any:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit(method: str, X: Any, y: Any, lengthscale: Any, seed: int) -> Callable[[Any], Any]:
    torch.manual_seed(seed)
    X, y = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y, dtype=torch.long)
    return (fit_svgp if method == "svgp-softmax" else fit_dirichlet)(X, y, lengthscale)


def make_kernel(lengthscale: Any, batch_shape: Any) -> Any:
    rbf = gpytorch.kernels.RBFKernel(ard_num_dims=lengthscale.size if lengthscale.ndim else None, batch_shape=batch_shape)
    rbf.lengthscale = torch.as_tensor(lengthscale, dtype=torch.float32)
    kernel = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch_shape)
    kernel.outputscale = 1.0
    return kernel


def optimise(parameters: Any, loss: Callable[[], Any], steps: int) -> None:
    adam = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    for _ in range(steps):
        adam.zero_grad()
        value = loss()
        value.backward()
        adam.step()


def draw(model: Any, X_test: Any) -> Any:
    """Draws of the latents, row by row: the joint ones of the tutorials need a factor of all rows, but give the same mean."""
    latent = model(torch.as_tensor(X_test, dtype=torch.float32))
    return latent.mean + latent.stddev * torch.randn(DRAWS, *latent.mean.shape)


def fit_svgp(X: Any, y: Any, lengthscale: Any) -> Callable[[Any], Any]:
    c = int(y.max()) + 1
    model = SVGP(X[torch.randperm(len(X))[:INDUCING]].clone(), c, make_kernel(lengthscale, torch.Size()))
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=c, num_classes=c)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    model.train()
    likelihood.train()
    optimise([*model.parameters(), *likelihood.parameters()], lambda: -elbo(model(X), y), SVGP_STEPS)
    model.eval()
    likelihood.eval()

    def predict(X_test: Any) -> Any:
        with torch.no_grad():
            return likelihood(draw(model, X_test)).probs.mean(dim=0).double().numpy()

    return predict


def fit_dirichlet(X: Any, y: Any, lengthscale: Any) -> Callable[[Any], Any]:
    likelihood = gpytorch.likelihoods.DirichletClassificationLikelihood(y, learn_additional_noise=True)
    targets = likelihood.transformed_targets
    model = Dirichlet(X, targets, likelihood, make_kernel(lengthscale, targets.shape[:1]))
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()
    optimise(model.parameters(), lambda: -evidence(model(X), targets).sum(), DIRICHLET_STEPS)
    model.eval()
    likelihood.eval()

    def predict(X_test: Any) -> Any:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            return draw(model, X_test).double().softmax(dim=1).mean(dim=0).numpy().T

    return predict


if __name__ == "__main__":
    main(fit, ("gpytorch", "torch", "numpy", "scipy"))
