"""The estimator: wiring only. Inference, hyperparameter search and prediction live in their own modules."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nestgp import hyper, kernels, predict
from nestgp.arrays import FloatArray, IntArray
from nestgp.inference import Fit, IndependentEP, Laplace, NestedEP, QuadratureEP, Status, VariationalBayes
from nestgp.kernel_gradient import contract
from nestgp.posterior import ProcessPosterior
from nestgp.sampling import EllipticalSlice, Gibbs, Hamiltonian, Ladder, ScaledMetropolis
from nestgp.sampling.mixing import summarise
from nestgp.sampling.mixture import Draws
from nestgp.threads import single_threaded_if_small
from nestgp.tierney_kadane import tierney_kadane_log_probabilities

INFERENCES: dict[str, type] = {
    "ep": NestedEP,
    "iep": IndependentEP,
    "qiep": QuadratureEP,
    "vb": VariationalBayes,
    "laplace": Laplace,
}
SAMPLERS: dict[str, type] = {
    "gibbs": Gibbs, "ladder": Ladder, "smh": ScaledMetropolis, "ess": EllipticalSlice, "hmc": Hamiltonian,
}  # fmt: skip
#: Short names for an inference with ``probabilities="tkp"``.
WITH_TKP = {"laplace-tkp": "laplace", "ep-tkp": "ep"}
NAMES = sorted([*INFERENCES, *WITH_TKP, *SAMPLERS])
#: Bytes of latent covariance work held at once during prediction.
PREDICT_MEMORY = 256 << 20


class GPClassifier(ClassifierMixin, BaseEstimator):
    """Multiclass Gaussian process classifier with calibrated probabilities.

    Parameters
    ----------
    kernel : scikit-learn kernel, list of one kernel per class, or None
        None: ``ConstantKernel * RBF``, one lengthscale per column up to 30 columns, one in all above, started from the
        spread of the data. A kernel given is used as it is, in the units of X.
    inference : "ep", "iep", "qiep", "vb", "laplace", or an object such as ``NestedEP(damping=0.8)``
        "laplace-tkp" and "ep-tkp" are short for the inference with ``probabilities="tkp"``. "gibbs", "ladder", "smh", "ess"
        and "hmc" sample (:mod:`nestgp.sampling`): hyperparameters under the prior too, unless ``optimizer`` is None.
    probabilities : "auto", "ep", "exact" or "tkp"
        How latents become class probabilities: inner EP, the integral itself (slower; see :mod:`nestgp.predict`), or ratios of
        evidences (much slower; see :mod:`nestgp.tierney_kadane`). "auto" is what suits the inference.
    prior : "half-student-t", None, or an object like :class:`nestgp.hyper.HalfStudentT`
        Prior of the hyperparameters; None is type-II maximum likelihood.
    optimizer : "l-bfgs-b", "em" or None
        "em" alternates inference and a maximisation with the posterior held fixed, as the paper does for "vb", and is for "vb"
        only. None keeps the kernel's hyperparameters as they are.
    n_restarts : int
        Further searches from random starting points; the best one is kept.
    random_state : int, RandomState or None
        Only restarts and samplers are random.
    n_jobs : int or None
        Processes for the restarts, or for the chains of a sampler.
    verbose : int
        1 shows the progress of the search on standard error.

    Attributes
    ----------
    classes_ : (c,) labels; kernel_ : fitted kernel, or list of kernels.
    log_marginal_likelihood_value_ : log evidence at ``kernel_``, without the prior.
    status_ : :class:`nestgp.inference.Status`; n_iter_ : outer iterations of the final inference; history_ : one row each.
    loo_log_proba_ : (n,) log p(y_i | the other rows), from the cavities, nan where there is none; not with samplers.
    search_ : :class:`nestgp.hyper.SearchResult`, or None if nothing was optimised.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from nestgp import GPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = GPClassifier().fit(X[::2], y[::2])
    >>> clf.status_.name
    'CONVERGED'
    >>> clf.predict_proba(X[1::2]).shape
    (75, 3)
    """

    def __init__(
        self,
        kernel: Kernel | Sequence[Kernel] | None = None,
        *,
        inference: Any = "ep",
        probabilities: str = "auto",
        prior: Any = "half-student-t",
        optimizer: str | None = "l-bfgs-b",
        n_restarts: int = 0,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.inference = inference
        self.probabilities = probabilities
        self.prior = prior
        self.optimizer = optimizer
        self.n_restarts = n_restarts
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> GPClassifier:
        """Choose the hyperparameters and infer the latents; X (n, d), y (n,) labels of any kind, at least two classes.

        Parameters changed afterwards count from the next fit on. A fit that fails leaves the one before as it was.
        """
        self._check_parameters()
        before = self.__dict__.copy()
        try:
            codes = self._validate(X, y)
            self._used, self._rule_used = self._inference(), self._rule()
            with single_threaded_if_small(codes.size):  # here, and not only around single products: changing back and forth costs
                return self._fit_validated(codes)
        except BaseException:
            self.__dict__ = before
            raise

    def _fit_validated(self, codes: IntArray) -> GPClassifier:
        kernel, units = self._starting_kernel()
        inference = self._used
        self.search_ = None
        self.__dict__.pop("_cavities", None)
        self.__dict__.pop("_loo", None)
        if hasattr(inference, "sample"):
            return self._fit_by_sampling(inference, kernel, units, codes)
        init = None
        if self.optimizer is not None and kernels.theta(kernel).size:
            self.search_ = self._search(kernel, units, codes, inference, stacklevel=4)
            kernel = kernels.with_theta(kernel, self.search_.theta)
            init = self.search_.fit
        K = kernels.gram(kernel, self.X_train_)
        kernels.check_gram(K)
        fit = inference.infer(K, codes, len(self.classes_), init=init)
        self._refuse_or_warn(fit, stacklevel=4)
        self.kernel_ = kernel
        self.y_train_ = codes
        self._fit: Any = replace(fit, gradient=None, site_moments=None) if self._rule_used == "tkp" else None
        self.posterior_ = ProcessPosterior(kernel, self.X_train_, fit.posterior)
        self.log_marginal_likelihood_value_ = fit.log_evidence
        self.status_, self.n_iter_, self.history_ = fit.status, fit.n_iter, fit.history
        self.sites_ = fit.sites
        self._cavities = fit.cavities()
        return self

    @property
    def loo_log_proba_(self) -> FloatArray:
        """(n,) log p(y_i | the other rows): the class probabilities of each row's cavity. Computed when first asked for.

        nan for a row whose cavity is beyond double precision, as with prior variances of 1e17.
        """
        if not hasattr(self, "_cavities"):
            raise AttributeError("loo_log_proba_ is there after fit, with every inference but the samplers")
        if not hasattr(self, "_loo"):
            self._loo = self._leave_one_out(*self._cavities)
        return self._loo

    def _fit_by_sampling(self, sampler: Any, kernel: Any, units: FloatArray, codes: IntArray) -> GPClassifier:
        """Chains start from a type-II MAP of the matching approximation; hyperparameters are sampled unless optimizer is None."""
        sampled = self.optimizer is not None and kernels.theta(kernel).size > 0
        if sampled:
            self.search_ = self._search(kernel, units, codes, sampler.approximation, stacklevel=5)
            if self.search_.message == hyper.INTERRUPTED:
                raise KeyboardInterrupt("sampling was interrupted before the first draw")
        kernels.check_gram(kernels.gram(kernel, self.X_train_))
        how: dict[str, Any] = {"prior": hyper.make_prior(self.prior) if sampled else None, "units": units}
        how |= {"search": self.search_, "n_jobs": self.n_jobs, "verbose": self.verbose}
        fit = sampler.sample(kernel, self.X_train_, codes, len(self.classes_), self._generator(), **how)
        if not fit.converged:
            warnings.warn(f"sampling ended as {fit.status.value}. {fit.status.advice}", ConvergenceWarning, stacklevel=4)
        self.posterior_ = fit.posterior
        draws = fit.posterior.draws
        theta = draws.theta.reshape(draws.n_components, -1).mean(axis=0) if sampled else kernels.theta(kernel)
        self.kernel_ = kernels.with_theta(kernel, theta)
        self.y_train_ = codes
        self.log_marginal_likelihood_value_ = np.nan
        self.status_, self.n_iter_, self.history_, self.sites_ = fit.status, draws.n_components * sampler.thin, (), None
        return self

    def to_arviz(self) -> Any:
        """Draws of a sampler as ArviZ data, by chain and draw: theta, the latents f, and p(y_i | f_i) of every training row."""
        draws = self._draws()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # its import announces a coming version
                import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install 'nestgp[mcmc]'") from error
        posterior = {"theta": draws.theta, "f": draws.f, "probability": draws.probability}
        dims = {"theta": ["hyperparameter"], "f": ["class", "row"], "probability": ["row"]}
        names = kernels.hyperparameter_names(self.kernel_)
        coords = {"hyperparameter": names, "class": list(self.classes_), "row": np.arange(draws.f.shape[-1])}
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict({"posterior": posterior}, dims=dims, coords=coords)
        return arviz.from_dict(posterior=posterior, dims=dims, coords=coords)

    def proba_diagnostics(self, X: Any) -> dict[str, FloatArray]:
        """R-hat, bulk and tail ESS of every predicted probability of a sampler, each (m, c).

        A probability counts as a reference only if R-hat < 1.01 and both ESS >= 400.
        """
        draws, X = self._draws(), self._validate_new(X)
        shape = (*draws.theta.shape[:2], -1)
        parts = []
        for part in self._chunks(X.shape[0]):
            mean, cov = self.posterior_.latent(X[part])
            logs = predict.component_log_probabilities(mean, cov, self._rule_used, self._used.likelihood)
            parts.append(summarise(np.exp(logs).reshape(shape)))
        size = (X.shape[0], len(self.classes_))
        return {name: np.concatenate([p[name] for p in parts]).reshape(size) for name in parts[0]}

    def _draws(self) -> Draws:
        check_is_fitted(self)
        draws = getattr(self.posterior_, "draws", None)
        if draws is None:
            raise ValueError(f"{type(self._used).__name__} has no draws: use inference='gibbs', 'smh', 'ess' or 'hmc'")
        return draws

    def predict(self, X: Any) -> Any:
        """Most probable label of each row, (m,)."""
        best = self.predict_log_proba(X).argmax(axis=1)  # first: it says so if nothing was fitted
        return self.classes_[best]

    def predict_proba(self, X: Any) -> FloatArray:
        """Class probabilities (m, c), columns in the order of ``classes_``, rows summing to one."""
        p = np.exp(self.predict_log_proba(X))
        return p / p.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Log class probabilities (m, c), accurate also where the probability itself underflows."""
        X = self._validate_new(X)
        out = np.empty((X.shape[0], len(self.classes_)))
        for part in self._chunks(X.shape[0]):
            out[part] = self._log_proba(X[part])
        return out

    def _log_proba(self, X: FloatArray) -> FloatArray:
        if self._rule_used != "tkp":
            likelihood = getattr(self._used, "likelihood", "probit")
            return predict.class_probabilities(*self.posterior_.latent(X), self._rule_used, likelihood)
        K = kernels.gram(self.kernel_, self.X_train_)
        border = (kernels.cross(self.kernel_, self.X_train_, X), kernels.diagonal(self.kernel_, X))
        problem = (K, self.y_train_, len(self.classes_))
        return tierney_kadane_log_probabilities(self._used, self._fit, *problem, *border)

    def predict_latent(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean (m, c) and covariance (m, c, c) of the latent values of each row."""
        X = self._validate_new(X)
        c = len(self.classes_)
        mean, cov = np.empty((X.shape[0], c)), np.empty((X.shape[0], c, c))
        for part in self._chunks(X.shape[0]):
            means, covs = self.posterior_.latent(X[part])
            mean[part] = means.mean(axis=0)
            spread = means - mean[part]
            cov[part] = covs.mean(axis=0) + np.einsum("smk,sml->mkl", spread, spread) / len(means)
        return mean, cov

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False
    ) -> float | tuple[float, FloatArray]:
        """Log evidence at ``theta`` (default: the fitted one), without the prior, and its gradient by θ if asked for.

        θ are the natural logs of the free hyperparameters, as in scikit-learn; for a list of kernels, concatenated.
        """
        check_is_fitted(self)
        if hasattr(self._used, "sample"):
            raise ValueError("a sampler gives no evidence: use a deterministic inference such as 'ep'")
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        kernel = self.kernel_ if theta is None else kernels.with_theta(self.kernel_, theta)
        K = kernels.gram(kernel, self.X_train_)
        fit = self._used.infer(K, self.y_train_, len(self.classes_))
        self._refuse_or_warn(fit, stacklevel=3)
        if not eval_gradient:
            return fit.log_evidence
        return fit.log_evidence, contract(kernel, self.X_train_, fit.evidence_grad, K=K)

    def _check_parameters(self) -> None:
        if not isinstance(self.probabilities, str):
            raise ValueError(f"probabilities={self.probabilities!r}: use 'auto', 'ep', 'exact' or 'tkp'")
        if self.optimizer not in ("l-bfgs-b", "em", None):
            raise ValueError(f"optimizer={self.optimizer!r}: use 'l-bfgs-b', 'em', or None to keep the hyperparameters")
        if self.optimizer == "em" and not isinstance(self._inference(), VariationalBayes):
            raise ValueError("optimizer='em' is for inference='vb': use 'l-bfgs-b' with the others")
        if not (isinstance(self.n_restarts, int | np.integer) and self.n_restarts >= 0):
            raise ValueError(f"n_restarts={self.n_restarts!r}: use an integer >= 0")
        hyper.make_prior(self.prior)
        self._inference()
        self._rule()

    def _validate(self, X: Any, y: Any) -> IntArray:
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", copy=True)  # what becomes of the caller's X is no matter
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds one class only, {self.classes_.tolist()[0]!r}: a classifier needs rows of at least two classes"
            )
        self.X_train_ = X
        return codes.astype(np.int64)

    def _validate_new(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, order="C", reset=False)

    def _starting_kernel(self) -> tuple[Kernel | list[Kernel], FloatArray]:
        if self.kernel is None:
            return kernels.default_kernel(self.X_train_)
        kernels.validate(self.kernel, len(self.classes_), self.X_train_.shape[1])
        kernel = kernels.with_theta(self.kernel, kernels.theta(self.kernel))  # a copy: the parameter stays as it was
        return kernel, np.ones(kernels.theta(kernel).size)

    def _inference(self) -> Any:
        if isinstance(self.inference, str):
            name = WITH_TKP.get(self.inference, self.inference)
            if name not in INFERENCES and name not in SAMPLERS:
                raise ValueError(f"inference={self.inference!r}: use one of {NAMES}, or an object such as NestedEP()")
            return (INFERENCES | SAMPLERS)[name]()
        able = any(callable(getattr(self.inference, method, None)) for method in ("infer", "sample"))
        if not able or isinstance(self.inference, type):
            raise TypeError(f"inference={self.inference!r} has no method infer or sample: use one of {NAMES} or NestedEP()")
        return self.inference

    def _rule(self) -> str:
        inference = self._inference()
        named_tkp = isinstance(self.inference, str) and self.inference in WITH_TKP
        if named_tkp and self.probabilities not in ("auto", "tkp"):
            raise ValueError(
                f"inference={self.inference!r} with probabilities={self.probabilities!r}: "
                f"use inference={WITH_TKP[self.inference]!r}, or probabilities='auto'"
            )
        if self.probabilities == "tkp" and not hasattr(inference, "infer"):
            raise ValueError("probabilities='tkp' needs evidences, which a sampler does not give: use 'auto'")
        if named_tkp or self.probabilities == "tkp":
            return "tkp"
        rule: str = getattr(inference, "default_rule", "ep") if self.probabilities == "auto" else self.probabilities
        if rule not in predict.RULES[getattr(inference, "likelihood", "probit")]:
            known = ["auto", *sorted(predict.RULES[getattr(inference, "likelihood", "probit")]), "tkp"]
            raise ValueError(f"probabilities={self.probabilities!r}: with this inference use one of {known}")
        return rule

    def _search(
        self, kernel: Any, units: FloatArray, codes: IntArray, inference: Any, stacklevel: int
    ) -> hyper.SearchResult:
        def make_objective() -> hyper.Objective:
            problem = (kernel, self.X_train_, codes, len(self.classes_))
            progress = _print_progress if self.verbose else None
            return hyper.Objective(*problem, inference, hyper.make_prior(self.prior), units, progress)

        theta, bounds = kernels.theta(kernel), kernels.bounds(kernel)
        start = np.clip(theta, bounds[:, 0], bounds[:, 1])
        climb = hyper.em if self.optimizer == "em" else hyper.coarse_to_fine
        restarts = (self.n_restarts, self._generator(), self.n_jobs)
        result = hyper.search_with_restarts(make_objective, start, bounds, *restarts, climb)
        if self.verbose:
            print(file=sys.stderr)
        if not result.success and result.message != hyper.INTERRUPTED:
            message = f"the hyperparameter search stopped early ({result.message}) after {result.n_evaluations} evaluations: "
            remedy = "the best point met is used; standardise the inputs, start the kernel elsewhere or raise n_restarts"
            warnings.warn(message + remedy, ConvergenceWarning, stacklevel=stacklevel)
        return result

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31))

    def _refuse_or_warn(self, fit: Fit, stacklevel: int) -> None:
        if fit.status is Status.NOT_POSITIVE_DEFINITE or not np.isfinite(fit.log_evidence):
            raise ValueError(f"inference ended as {fit.status.value}, no result can be given. {fit.status.advice}")
        if not fit.converged:
            message = f"inference ended as {fit.status.value} after {fit.n_iter} iterations, residual {fit.residual:.1e}. "
            warnings.warn(message + fit.status.advice, ConvergenceWarning, stacklevel=stacklevel)

    def _leave_one_out(self, mean: FloatArray, cov: FloatArray) -> FloatArray:
        rule = getattr(self._used, "default_rule", "ep") if self._rule_used == "tkp" else self._rule_used
        known = np.isfinite(mean).all(axis=1) & ~predict.broken_covariances(cov)
        likelihood = getattr(self._used, "likelihood", "probit")
        log_p = predict.class_probabilities(mean[None, known], cov[None, known], rule, likelihood)
        out = np.full(known.size, np.nan)
        out[known] = np.take_along_axis(log_p, self.y_train_[known, None], axis=1)[:, 0]
        return out

    def _chunks(self, rows: int) -> list[slice]:
        c = len(self.classes_)
        components = getattr(getattr(self.posterior_, "draws", None), "n_components", 1)
        size = max(16, PREDICT_MEMORY // (8 * c * max(self.X_train_.shape[0], components * c)))
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _print_progress(evaluation: int, value: float, fit: Fit) -> None:
    n = len(fit.posterior.mean)
    line = f"\r{n} rows, evaluation {evaluation:3d}  log posterior {value:12.4f}  {fit.n_iter:3d} iterations, {fit.status.value}"
    print(line, end="", file=sys.stderr, flush=True)
