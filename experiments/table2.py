"""Table 2 and the numbers of figures 8 and 9: predictive performance with hyperparameters estimated (section 5.4).

Every data set, fold and method is one checkpoint. `table2.json` holds the log predictive density and the predicted class of
every test row, so that every comparison follows from it. `--only 'glass/*'` computes the tasks that match (DATA SET/METHOD/FOLD)
and writes what there is by then; what is missing is named in the file, what the file held before is kept.

EP, IEP, VB and LA take the mode of evidence × prior (half Student-t), LA-TKP the hyperparameters of LA, MCMC samples them.
Beside them, on the same rows: scikit-learn's Gaussian process, random forest and logistic regression, and GPflow and GPyTorch,
which run in environments of their own (made once, see `benchmarks.peers`) and are no part of a quick run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
from benchmarks import peers
from benchmarks.problems import Problem
from scipy.stats import beta
from sklearn.base import ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from experiments.common import Experiment, compare_paired, one_command
from nestgp import GPClassifier, kernels, predict
from nestgp.arrays import FloatArray
from nestgp.datasets import Dataset, Split, load
from nestgp.diagnostics import Interval, bayesian_bootstrap_interval, compare_log_density, log_predictive_density
from nestgp.hyper import INTERRUPTED
from nestgp.inference import Status
from nestgp.sampling import Gibbs, Ladder
from nestgp.sampling.mixing import mixed, summarise
from nestgp.sampling.mixture import Draws

DATASETS = ("new_thyroid", "teaching", "glass", "wine", "image_segmentation", "usps_357")
INFERENCES = {"EP": "ep", "IEP": "iep", "VB": "vb", "LA": "laplace"}
METHODS = (*INFERENCES, "LA-TKP", "MCMC")
PEERS = ("scikit-learn GP", "random forest", "logistic regression")
#: Package and method of it, as `benchmarks.peers` names them.
SCRIPTED_PEERS = {
    "GPflow VGP": ("gpflow", "vgp-robustmax"),
    "GPflow SVGP": ("gpflow", "svgp-softmax"),
    "GPyTorch SVGP": ("gpytorch", "svgp-softmax"),
    "GPyTorch Dirichlet": ("gpytorch", "dirichlet"),
}
#: Seconds that each of their fits with prediction may take.
LIMIT = 600.0
REFERENCE = "EP"
#: What a fit must have ended as; a peer's says nothing more than that there is one.
RELIABLE = ("converged", "fitted")
#: Chains, the sweeps of their warm-up, and how many draws of each: the next if some test probability has not mixed.
CHAINS, WARMUP, DRAWS = 4, 200, (300, 400, 550, 750, 1000, 1350, 1800, 2400, 3200)
#: The same where so many test rows never mix sooner, and on the ladder, whose draws are fewer and cost more.
OTHER_LENGTHS = {
    "usps_357": (30, (2880, 3520, 4160, 5120, 6400, 8000)),
    "image_segmentation": (200, (2400, 3200, 4300, 6500)),
    "teaching": (240, (400, 550, 750, 1000, 1350, 1800, 2400)),
    "glass": (100, (1600, 2200, 2800, 3400, 4000, 4800, 5600, 7200, 9600)),
}
#: Where hyperparameters have several hills, between which Gibbs sampling seldom crosses, or its sweeps take seconds.
LADDERS: dict[str, dict[str, Any]] = {
    "teaching": {"particles": 32},
    "glass": {"particles": 32, "repeat": 4, "looks": 6},
    "usps_357": {"particles": 64, "stages": 20, "repeat": 16, "climbs": 0, "looks": 1, "wander": 0.05},
}
#: Test rows looked at first: of some data sets all take minutes.
ROWS_OF_A_GLANCE = 50
#: Draws times test rows from which only some of the draws predict.
MOST_PREDICTIONS = 4_000_000
TREES = 500
#: A quick run: these data sets, the first fold only, this many rows for training and at most for testing.
QUICK_DATASETS, QUICK_ROWS = ("teaching", "glass", "usps_357"), 40
#: Bytes of latent covariances of all draws held at once.
MEMORY = 1 << 30
CAVEATS = (
    "the paper does not publish its folds: these are stratified, shuffled with seed 0",
    "grey levels of USPS are not standardised",
    "EP, IEP, VB, LA: one search, and another from longer lengthscales where one ends at its lower bound (EP on 7 and IEP on 4 "
    "folds of Teaching, whose evidence has several hills; random restarts find better ones still)",
    "GPflow and GPyTorch: set as in their tutorials (VGP: RobustMax; SVGP: softmax, 100 inducing points), started at the kernel "
    "that scikit-learn's Gaussian process starts at; seconds without warm-up, the best of up to three if they are short",
    "MCMC: chains end at the first of several lengths at which every test probability has R-hat < 1.01 and ESS >= 400; looking "
    "at them repeatedly lets some pass by luck",
    "MCMC: Gibbs sampling; on Teaching and Glass, whose hyperparameters have several hills, and on USPS the sampler that climbs "
    "a ladder of EP's posteriors; both draw from the exact posterior",
    "MCMC: where chains were interrupted, their seconds are those of the last run",
    f"random forest: one vote in {TREES} + 1 is spread over all classes, so that no class has probability zero",
)
QUICK_CAVEAT = "GPflow and GPyTorch are no part of a quick run"


# ------------------------------------------------------------------------------------------------------- methods


def run_method(experiment: Experiment, key: str, name: str, fold: int) -> dict[str, Any]:
    """Fit one method on one fold: log predictive density and predicted class of its test rows, and how the fit went."""
    dataset, method = load(name), method_of(key)
    split = chosen_splits(dataset, experiment.quick)[fold]
    if method in SCRIPTED_PEERS:
        return run_scripted_peer(method, split, dataset, experiment)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if method in PEERS:
            log_p, about = run_peer(method, split, dataset, experiment)
        elif method == "MCMC":
            log_p, about = run_mcmc(split, dataset, experiment, key)
        else:
            log_p, about = run_approximation(method, split, dataset, experiment, fold)
    seconds = time.perf_counter() - start
    lpd = log_predictive_density(np.exp(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True)), split.y_test)
    notes = sorted({str(warning.message) for warning in caught})
    return {"lpd": lpd, "predicted": log_p.argmax(axis=1), "seconds": seconds, "warnings": notes, **about}


def run_approximation(
    method: str, split: Split, dataset: Dataset, experiment: Experiment, fold: int
) -> tuple[FloatArray, dict[str, Any]]:
    """EP, IEP, VB, LA with their own search, or LA-TKP at the hyperparameters of LA."""
    kernel = starting_kernel(dataset)
    if method == "LA-TKP":
        key = f"{dataset.name}/LA/{fold}"
        laplace = experiment.checkpoint.get(key, partial(run_method, experiment, key, dataset.name, fold))
        kernel = kernels.with_theta(kernel or kernels.default_kernel(split.X_train)[0], np.array(laplace["theta"]))
        clf = GPClassifier(kernel, inference="laplace-tkp", optimizer=None)
    else:
        clf = GPClassifier(kernel, inference=INFERENCES[method], random_state=experiment.seed)
    clf.fit(split.X_train, split.y_train)
    if clf.search_ is not None and clf.search_.message == INTERRUPTED:
        raise KeyboardInterrupt  # half a search is not a result
    about: dict[str, Any] = {"theta": kernels.theta(clf.kernel_), "status": clf.status_.value, "n_iter": clf.n_iter_}
    about["log_evidence"] = clf.log_marginal_likelihood_value_
    if clf.search_ is not None:
        about |= {"evaluations": clf.search_.n_evaluations, "search": clf.search_.message}
    return clf.predict_log_proba(split.X_test), about


def run_mcmc(split: Split, dataset: Dataset, experiment: Experiment, key: str) -> tuple[FloatArray, dict[str, Any]]:
    """Sampling of latents and hyperparameters, until every test probability has mixed or the patience is used up.

    A chain that is interrupted goes on from its last minute.
    """
    folder = experiment.checkpoint.path / "chains"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    stem = key.replace("/", "-")
    warmup, lengths = (10, (10,)) if experiment.quick else OTHER_LENGTHS.get(dataset.name, (WARMUP, DRAWS))
    for draws in lengths:
        make: Callable[..., Gibbs | Ladder] = Gibbs
        if dataset.name in LADDERS:
            make = partial(Ladder, **LADDERS[dataset.name])
        sampler = make(draws, warmup, 2 if experiment.quick else CHAINS, checkpoint=str(folder / stem))
        jobs = None if experiment.quick else -1  # a chain per core
        clf = GPClassifier(starting_kernel(dataset), inference=sampler, random_state=experiment.seed, n_jobs=jobs)
        clf.fit(split.X_train, split.y_train)
        if clf.posterior_.draws.n_components < sampler.n_chains * sampler.n_draws:
            raise KeyboardInterrupt  # fewer draws than asked for: an interrupt ended the chains
        thin = max(1, sampler.n_chains * draws * len(split.X_test) // MOST_PREDICTIONS)
        clf.posterior_ = replace(clf.posterior_, draws=every(thin, clf.posterior_.draws))
        some = split.X_test[:: max(1, len(split.X_test) // ROWS_OF_A_GLANCE)]
        glance = draws < lengths[-1] and len(some) < len(split.X_test)
        if glance and not mixed(mixture_predictions(clf, some, sampler.n_chains)[1]):
            continue  # some have not, so all have not
        log_p, mixing = mixture_predictions(clf, split.X_test, sampler.n_chains)
        if mixed(mixing):
            break
    status = Status.CONVERGED if mixed(mixing) else Status.NOT_MIXED
    about = {"status": status.value, "theta": clf.posterior_.draws.theta.mean(axis=(0, 1)), "predictions": mixing}
    about |= {"training": worst(clf.posterior_.summary), "chains": sampler.n_chains, "warmup": warmup}
    about |= {"sampler": type(sampler).__name__, "settings": LADDERS.get(dataset.name, {}), "draws": draws}
    about |= {"every_draw_that_predicts": thin}
    for chain in folder.glob(f"{stem}.chain*.pkl") if mixed(mixing) else ():  # else longer ones can go on from them
        chain.unlink()
    return log_p, about


def every(step: int, draws: Draws) -> Draws:
    """Every so many-th draw of each chain: neighbours say nearly the same, and of many test rows predictions take hours."""
    return Draws(*(getattr(draws, field.name)[:, step - 1 :: step] for field in fields(draws)))


def mixture_predictions(clf: GPClassifier, X: FloatArray, n_chains: int) -> tuple[FloatArray, dict[str, Any]]:
    """Log class probabilities (m, c) averaged over the draws, and the worst R-hat and ESS of any of them."""
    c, draws = len(clf.classes_), clf.posterior_.draws.n_components
    step = max(16, MEMORY // (8 * draws * c * c))
    logs, found = [], []
    for first in range(0, len(X), step):
        each = predict.component_log_probabilities(*clf.posterior_.latent(X[first : first + step]), "exact", "probit")
        logs.append(np.logaddexp.reduce(each, axis=0) - np.log(draws))
        found.append(summarise(np.exp(each).reshape(n_chains, draws // n_chains, -1)))
    return np.concatenate(logs), worst({name: np.concatenate([part[name] for part in found]) for name in found[0]})


def worst(summary: Mapping[str, FloatArray]) -> dict[str, float]:
    """Largest R-hat and smallest effective sample sizes."""
    return {name: float(np.max(values) if name == "rhat" else np.min(values)) for name, values in summary.items()}


def run_peer(method: str, split: Split, dataset: Dataset, experiment: Experiment) -> tuple[FloatArray, dict[str, Any]]:
    """What scikit-learn has for the same task, each as its documentation recommends."""
    trees = 50 if experiment.quick else TREES
    kernel = peer_kernel(split, dataset)
    classifiers: dict[str, ClassifierMixin] = {
        "scikit-learn GP": GaussianProcessClassifier(kernel, random_state=experiment.seed),
        "random forest": RandomForestClassifier(trees, random_state=experiment.seed),
        "logistic regression": LogisticRegression(max_iter=5000),
    }
    p = classifiers[method].fit(split.X_train, split.y_train).predict_proba(split.X_test)
    if method == "random forest":
        p = (trees * p + 1 / dataset.n_classes) / (trees + 1)
    return np.log(p), {"status": "fitted"}


def run_scripted_peer(method: str, split: Split, dataset: Dataset, experiment: Experiment) -> dict[str, Any]:
    """What another package makes of the split in a process of its own; only a status where it made nothing of it."""
    lengthscale = np.asarray(peer_kernel(split, dataset).k2.length_scale)
    problem = Problem(split.X_train, split.y_train, split.X_test, split.y_test, lengthscale)
    (found,) = peers.run_script(*SCRIPTED_PEERS[method], [problem], None, LIMIT, experiment.seed)
    if found["status"] != "ok":
        return {"status": f"not run: {f'stopped after {LIMIT:g} s' if found['status'] == 'timeout' else found['status']}"}
    kept = {name: found[name] for name in ("lpd", "predicted", "below_tiny", "versions")}
    return {**kept, "seconds": found["fit_seconds"] + found["predict_seconds"], "status": "fitted"}


def peer_kernel(split: Split, dataset: Dataset) -> Kernel:
    return starting_kernel(dataset) or kernels.default_kernel(split.X_train)[0]


def starting_kernel(dataset: Dataset) -> Kernel | None:
    """σ² exp(−…) with one lengthscale per covariate or one in all, as Table 2 says; None: the classifier's own is that."""
    d = len(dataset.feature_names)
    if dataset.ard == (d <= kernels.MAX_ARD_COLUMNS):
        return None
    return ConstantKernel(1.0, (1e-3, 1e5)) * RBF(np.sqrt(d), (1e-2, 1e4))


def chosen_datasets(quick: bool) -> tuple[str, ...]:
    return QUICK_DATASETS if quick else DATASETS


def chosen_peers(quick: bool) -> tuple[str, ...]:
    return PEERS if quick else (*PEERS, *SCRIPTED_PEERS)


def chosen_splits(dataset: Dataset, quick: bool) -> list[Split]:
    """All folds; of a quick run, a few rows of the first."""
    if not quick:
        return list(dataset.folds())
    split = next(dataset.folds())
    train = sample_rows(split.y_train)
    test = np.sort(np.random.default_rng(0).permutation(len(split.y_test))[:QUICK_ROWS])
    rows = {"X_train": split.X_train[train], "y_train": split.y_train[train], "train": split.train[train]}
    rows |= {"X_test": split.X_test[test], "y_test": split.y_test[test], "test": split.test[test], "clean": split.clean[test]}
    return [Split(**rows)]


def sample_rows(y: Any, n: int = QUICK_ROWS) -> Any:
    """Indices of n rows with all classes in their proportions."""
    return np.sort(train_test_split(np.arange(len(y)), train_size=n, stratify=y, random_state=0)[0])


# ------------------------------------------------------------------------------------------------------ summaries


def summarise_methods(rows: Mapping[str, Mapping[str, Any]], targets: Any) -> dict[str, dict[str, Any]]:
    """Scores of each method and its differences to EP on the same points, all with 95% credible intervals.

    Log densities by the Bayesian bootstrap; accuracies by a Beta posterior, and their differences by a Dirichlet posterior of
    worse, same and better, both under a flat prior.

    Parameters
    ----------
    rows : method → lpd (n,) and predicted (n,); targets : (n,) true classes.
    """
    reference = rows.get(REFERENCE)
    found = {}
    for method, row in rows.items():
        hit = row["predicted"] == targets
        found[method] = {"mlpd": bayesian_bootstrap_interval(row["lpd"]), "accuracy": accuracy_interval(hit)}
        if reference is not None and method != REFERENCE:
            found[method]["lpd_minus_ep"] = compare_log_density(row["lpd"], reference["lpd"])
            found[method]["accuracy_minus_ep"] = compare_paired(hit, reference["predicted"] == targets)
            found[method]["same_as_ep"] = bool(np.all(row["predicted"] == reference["predicted"]))
    return found


def accuracy_interval(hit: Any) -> Interval:
    """Share of hits, and the central interval of Beta(hits + 1, misses + 1)."""
    hits = int(np.sum(hit))
    low, high = beta.ppf([0.025, 0.975], hits + 1, len(hit) - hits + 1)
    return Interval(hits / len(hit), float(low), float(high))


def report(experiment: Experiment, absent: Mapping[str, str]) -> dict[str, Any]:
    """Everything that is in the checkpoints, by data set; `absent`: method → why it could not be run at all."""
    results: dict[str, Any] = {}
    missing: list[str] = []
    for name in chosen_datasets(experiment.quick):
        dataset = load(name)
        splits = chosen_splits(dataset, experiment.quick)
        targets, clean = (np.concatenate([getattr(split, part) for split in splits]) for part in ("y_test", "clean"))
        methods, some, not_run = collect(experiment, name, len(splits), absent)
        every = (*METHODS, *chosen_peers(experiment.quick))
        missing += [f"{name}/{method}" for method in every if method not in methods and method not in not_run]
        protocols = {"paper": np.ones(len(targets), dtype=bool)} | ({} if clean.all() else {"clean": clean})
        summary = {}
        for protocol, keep in protocols.items():
            rows = {m: {part: row[part][keep] for part in ("lpd", "predicted")} for m, row in methods.items()}
            summary[protocol] = {"n": int(keep.sum()), "methods": summarise_methods(rows, targets[keep])}
        about = {"n_train": [len(split.y_train) for split in splits], "n_classes": dataset.n_classes, "ard": dataset.ard}
        about |= {"rows": np.concatenate([split.test for split in splits]), "targets": targets, "clean": clean}
        results[name] = about | {"caveats": dataset.caveats, "summary": summary, "methods": methods, "not_run": not_run}
        results[name]["some_folds"] = some
    notes = [*CAVEATS, *([QUICK_CAVEAT] if experiment.quick else [])]
    notes += [f"not yet computed: {', '.join(missing)}"] if missing else []
    notes += [f"{name}/{method}: {why}" for name, data in results.items() for method, why in data["not_run"].items()]
    experiment.save(results, [*notes, *unmixed(results), *unmixed_elsewhere(results)])
    return results


def collect(
    experiment: Experiment, name: str, n_folds: int, absent: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[int, Any]], dict[str, str]]:
    """Methods that have all their folds on this data set; the folds of others; and those that cannot have all → why."""
    methods, some, not_run, checkpoint = {}, {}, {}, experiment.checkpoint
    for method in (*METHODS, *chosen_peers(experiment.quick)):
        keys = {fold: f"{name}/{method}/{fold}" for fold in range(n_folds)}
        folds = {fold: checkpoint.get(key, dict) for fold, key in keys.items() if key in checkpoint}
        failed = [f"{row['status']} (fold {fold})" for fold, row in folds.items() if "lpd" not in row]
        if failed:
            not_run[method] = failed[0] + (f", and {len(failed) - 1} more" if len(failed) > 1 else "")
        elif len(folds) == n_folds:
            methods[method] = gather(list(folds.values()))
        elif method in absent:
            not_run[method] = absent[method]
        if folds and method not in methods:
            some[method] = folds
    return methods, some, not_run


def gather(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """One method on all folds: its rows end to end, and how each fit went."""
    rows = {"lpd": np.round(np.concatenate([np.array(fold["lpd"], dtype=float) for fold in folds]), 6)}
    rows["predicted"] = np.concatenate([np.array(fold["predicted"], dtype=int) for fold in folds])
    fits = [{name: value for name, value in fold.items() if name not in rows} for fold in folds]
    return {**rows, "reliable": all(fit["status"] in RELIABLE for fit in fits), "fits": fits}


def unmixed(results: Mapping[str, Any]) -> list[str]:
    """A sentence for every method of a data set whose chains have not mixed or whose iteration has not converged."""
    return [
        f"{name}/{method}: {sum(fit['status'] not in RELIABLE for fit in row['fits'])} of {len(row['fits'])} fits "
        + ("not mixed (some test probability: R-hat >= 1.01 or ESS < 400)" if method == "MCMC" else "not converged")
        for name, data in results.items()
        for method, row in data["methods"].items()
        if not row["reliable"]
    ]


def unmixed_elsewhere(results: Mapping[str, Any]) -> list[str]:
    """A sentence for every data set where all test probabilities of MCMC have mixed, and some hyperparameter or latent not."""
    found = []
    for name, data in results.items():
        fits = [fit for fit in data["methods"].get("MCMC", {"fits": []})["fits"] if fit["status"] in RELIABLE]
        worse = [fit["training"] for fit in fits if not mixed(fit["training"])]
        if worse:
            ess = min(min(training["ess_bulk"], training["ess_tail"]) for training in worse)
            sentence = f"{name}/MCMC: {len(worse)} of {len(fits)} fits with all test probabilities mixed but some hyperparameter"
            rhat = max(training["rhat"] for training in worse)
            found.append(f"{sentence} or training latent not (R-hat up to {rhat:.3f}, ESS down to {ess:.0f})")
    return found


def tasks(experiment: Experiment) -> dict[str, Callable[[], Any]]:
    """DATA SET/METHOD/FOLD → what computes it; fast methods of all data sets first, so that an early stop leaves the most."""
    found: dict[str, Callable[[], Any]] = {}
    for method in (*METHODS[:-1], *chosen_peers(experiment.quick), METHODS[-1]):
        for name in chosen_datasets(experiment.quick):
            folds = 10 if load(name).protocol == "ten-fold" and not experiment.quick else 1
            for key in (f"{name}/{method}/{fold}" for fold in range(folds)):
                found[key] = partial(run_method, experiment, key, name, int(key.rpartition("/")[2]))
    return found


def stored(experiment: Experiment) -> dict[str, Any]:
    """The results in `table2.json` (quick: `table2-quick.json`), made first if there are none of that seed."""
    mine = replace(experiment, name="table2", command=one_command("table2", experiment.seed, experiment.quick))
    path = mine.results / f"{mine.stem}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("seed") != experiment.seed:
        run(mine)
        record = json.loads(path.read_text())
    return record


def recall(experiment: Experiment, wanted: Callable[[str], bool]) -> None:
    """Make checkpoints of what `table2.json` holds of this seed, but for what is wanted anew.

    So a part computed on another machine does not cost the rest of the file, and what takes days can be done fold by fold.
    """
    path = experiment.results / f"{experiment.stem}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("seed") != experiment.seed:
        return
    for name, data in record["results"].items():
        sizes = [len(split.y_test) for split in chosen_splits(load(name), experiment.quick)]
        known = {method: apart(row, sizes) for method, row in data["methods"].items()} | data.get("some_folds", {})
        for method, folds in known.items():
            for key, row in ((f"{name}/{method}/{fold}", row) for fold, row in folds.items()):
                if not wanted(key):
                    experiment.checkpoint.get(key, partial(dict, row))


def apart(row: Mapping[str, Any], sizes: list[int]) -> dict[str, dict[str, Any]]:
    """What `gather` put together, fold by fold; sizes: test rows of each."""
    cut = partial(np.split, indices_or_sections=np.cumsum(sizes)[:-1])
    each = zip(cut(np.array(row["lpd"], dtype=float)), cut(np.array(row["predicted"])), row["fits"], strict=True)
    return {str(fold): {"lpd": lpd, "predicted": predicted, **fit} for fold, (lpd, predicted, fit) in enumerate(each)}


def run(experiment: Experiment, only: str = "*") -> None:
    """Compute the tasks that match `only`, then write all that is computed."""
    wanted = partial(fnmatchcase, pat=only)
    recall(experiment, wanted)
    todo = {key: task for key, task in tasks(experiment).items() if wanted(key)}
    pending = [key for key in todo if key not in experiment.checkpoint]
    absent = not_installed(pending)
    # What cannot be installed is not kept as a result: the next run may be able to.
    experiment.run({key: task for key, task in todo.items() if not (key in pending and method_of(key) in absent)})
    report(experiment, absent)


def method_of(key: str) -> str:
    return key.split("/")[1]


def not_installed(keys: Iterable[str]) -> dict[str, str]:
    """Methods of these tasks whose package is not there and cannot be installed → why."""
    methods = [method for method in dict.fromkeys(map(method_of, keys)) if method in SCRIPTED_PEERS]
    pythons = {method: peers.environment(SCRIPTED_PEERS[method][0]) for method in methods}
    return {method: f"not run: not installed: {why}" for method, why in pythons.items() if isinstance(why, Exception)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="*")
    options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    about = "Predictive performance on six data sets. --only PATTERN: of DATA SET/METHOD/FOLD, such as 'glass/*'."
    run(Experiment.from_command_line("table2", about, rest), options.only)


if __name__ == "__main__":
    main()
