"""A pre-flight finding in every report: its topic, and a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from accucompare.asked import maps_taken, try_maps
from accucompare.bundle.format import display_name
from accucompare.compare import preflight_facts as facts
from accucompare.compare.limits import OtherCode, Suggestion, Surrounding
from accucompare.compare.preflight_facts import (
    BesideGolden,
    CaptureSetting,
    DigestTable,
    FindingFact,
    OtherModel,
    PreflightFinding,
    RefusedBaseline,
)
from accucompare.devices import is_a_librarys
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.report.words.stage_words import fusion_words, stage_words
from accucompare.selection import Mode
from accucompare.text import counted, first_few, printable, ranges


@dataclasses.dataclass(frozen=True)
class ToldFinding(PreflightFinding):
    """A finding of ``accucompare.diff``, with its topic and message."""

    @classmethod
    def of(cls, finding: PreflightFinding) -> ToldFinding:
        names = (each.name for each in dataclasses.fields(PreflightFinding))
        return cls(**{name: getattr(finding, name) for name in names})

    @property
    def topic(self) -> str:
        return topic(self)

    @property
    def message(self) -> str:
        return message(self)


def sides_words(sides: Iterable[BesideGolden], between: str = " and ") -> str:
    """``golden and the candidate``."""
    return between.join(
        "golden" if side is BesideGolden.GOLDEN else f"the {side.value}" for side in sides
    )


def unfinished_words(sides: Iterable[BesideGolden]) -> str:
    return f"the capture of {sides_words(sides, ' and of ')} did not run to its end"


def topic(finding: PreflightFinding) -> str:
    return f"baseline {_topic(finding.fact)}" if finding.beside_baseline else _topic(finding.fact)


def message(finding: PreflightFinding) -> str:
    fact = finding.fact
    said = _of_baselines(fact) or _of_captures(fact) or _of_settings(fact) or _of_options(fact)
    said = said or stage_words(fact) or fusion_words(fact)
    return f"baseline: {said}" if finding.beside_baseline else said


_TOPICS = {
    facts.CaptureStopped: "incomplete",
    facts.DrawsApart: "random numbers",
    facts.RankLacksSteps: "incomplete",
    facts.RanksMissing: "incomplete",
    facts.SeveralRuns: "ranks",
    facts.HeldInMode: "mode",
    facts.ImportedDump: "import",
    facts.OtherSteps: "steps",
    facts.WeightsOfSteps: "weights",
    facts.SurroundingsDiffer: "environment",
    facts.AttributeDiffers: "configuration",
    facts.MoreAttributes: "configuration",
    facts.LeftDiffers: "configuration",
    facts.OneHolds: "configuration",
    facts.LeftUnlooked: "configuration",
    facts.FlagDiffers: "flags",
    facts.LowerPrecision: "flags",
    facts.Saturates: "flags",
    facts.NotFedValues: "feed",
    facts.ScalerDiffers: "gradient scaler",
    facts.WeightsNotRounded: "round_weights",
    facts.CaptureNote: "note",
    facts.StateMissing: "state",
    facts.FeedingChanged: "feed",
    facts.RefusedBaseline: "refused baseline",
    facts.ProperBaseline: "baseline",
    facts.BaselineHelps: "baseline",
    facts.ProductsRounded: "baseline",
    facts.OwnBaselineUnfit: "baseline",
    facts.NotInBaseline: "baseline",
    facts.OtherModel: "model",
    facts.MapClash: "map",
    facts.LayoutMatchesNothing: "layout",
    facts.LeadsNowhere: "map",
    facts.MapsTaken: "map",
    facts.MapsProposed: "map",
    facts.NamesPutBack: "names",
    facts.FusedNames: "names",
    facts.CarriedApart: "names",
    facts.CallsInParts: "names",
    facts.OddMicrobatches: "microbatches",
    facts.RuleJudgesNothing: "tolerances",
}


def _topic(fact: FindingFact) -> str:
    match fact:
        case facts.OtherDigests() | facts.OtherTypes() | facts.OneSidedEntries():
            return _table(fact.table)
        case facts.ComputedOtherwise():
            return f"computed buffers{_of_rank(fact.rank)}"
        case facts.SettingDiffers():
            return _SETTINGS[fact.setting]
        case facts.VersionDiffers():
            return fact.package
        case facts.MatchesNothing():
            return fact.option
    return _TOPICS[type(fact)]


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f" of rank {rank}"


def _in_rank(rank: int | None) -> str:
    return "" if rank is None else f" (rank {rank})"


def _table(table: DigestTable) -> str:
    """``parameters of rank 1``; ``inputs of steps 0 to 3, 7``."""
    if not table.steps:
        return f"{table.kind}{_of_rank(table.rank)}"
    several = "" if len(table.steps) == 1 else "s"
    steps = first_few(ranges(table.steps, " to "))
    return f"{table.kind} of step{several} {steps}{_of_rank(table.rank)}"


def _shown(value: Any) -> str:
    words = {"True": "on", "False": "off", "None": "none"}
    return words.get(str(value), str(value))


_SETTINGS = {
    CaptureSetting.TRAINING: "train mode",
    CaptureSetting.DROPOUT: "active dropout modules",
    CaptureSetting.MODEL_CLASS: "model class",
    CaptureSetting.SEED: "seed",
    CaptureSetting.AUTOCAST: "autocast",
    CaptureSetting.EMULATED: "emulated precision",
    CaptureSetting.OPTIMIZER: "optimizer",
    CaptureSetting.ONLY: "--only",
    CaptureSetting.SKIP: "--skip",
    CaptureSetting.RANDOM: "random operations",
    CaptureSetting.DEVICE: "device",
    CaptureSetting.COMMIT: "git commit",
}

_MODES = {
    Mode.SKETCH: (
        "sketches: errors are estimates, and each limit leaves room for theirs; --atol and --rtol"
        " need tensors"
    ),
    Mode.STATS: (
        "statistics only: errors are lower bounds, and values in another order are not seen"
    ),
    Mode.DIGEST: "digests only: what differs is seen, and not how far",
}

#: The most environment variables and libraries that are named.
_MOST_SURROUNDINGS = 5


_OfRanks = facts.DrawsApart | facts.RankLacksSteps | facts.RanksMissing | facts.SeveralRuns


def _of_ranks(fact: _OfRanks) -> str:
    """What ranks are missing, of another run, recorded less than others, or drew by themselves."""
    if isinstance(fact, facts.SeveralRuns):
        runs = "; ".join(ranks_in_words(each) for each in fact.ranks)
        return f"{fact.side.value} is mixed of {len(fact.ranks)} runs ({runs}); capture it again"
    if isinstance(fact, facts.DrawsApart):
        return (
            f"{fact.side.value}: its ranks drew {fact.draws} random tensor(s), as dropout does,"
            " which one device draws otherwise; capture both with dropout at 0 or in eval mode"
        )
    if isinstance(fact, facts.RanksMissing):
        return f"{fact.side.value} lacks rank(s) {first_few(fact.missing)} of {fact.ranks}"
    return f"{fact.side.value}: rank {fact.rank} recorded {fact.steps} of {fact.of} steps"


def _of_captures(fact: FindingFact) -> str:
    """How captures ended, what they hold and were given; ``""`` for any other fact."""
    match fact:
        case facts.CaptureStopped(side, rank, module, step, error):
            place = f" in {module}" if module else ""
            place += "" if step is None else f" in step {step}"
            why = "it was killed, or is still running" if error is None else error
            return f"{side.value}{_in_rank(rank)} is incomplete: stopped{place}: {why}"
        case (
            facts.DrawsApart() | facts.RankLacksSteps() | facts.RanksMissing() | facts.SeveralRuns()
        ):
            return _of_ranks(fact)
        case facts.HeldInMode(mode, golden, candidate):
            sides = [*(["golden"] * golden), *(["the candidate"] * candidate)]
            return f"{' and '.join(sides)} {'hold' if len(sides) == 2 else 'holds'} {_MODES[mode]}"
        case facts.ImportedDump(side, name, unknown):
            settings = ", ".join(_SETTINGS[setting] for setting in unknown)
            return f"{side.value} was imported from {name}, whose dumps do not tell: {settings}"
        case facts.OtherSteps(golden, other, side):
            ours, theirs = (
                f"{counted(steps, 'step')} of {counted(ranks, 'rank')}"
                for steps, ranks in (golden, other)
            )
            return f"golden holds {ours}, the {side.value} {theirs}"
        case facts.WeightsOfSteps(rank, golden, other, side):
            return (
                f"weights{_of_rank(rank)} cannot be compared: golden's are those of"
                f" step {golden}, the {side.value}'s those of step {other}"
            )
        case facts.OtherDigests(table, names, shared):
            return f"{len(names)} of {shared} {_table(table)} differ: {first_few(names)}"
        case facts.OtherTypes(table, golden, other, side, known, names, shared):
            unsure = "" if known else ", too different to say whether they agree"
            change = f"{golden} in golden, {other} in the {side.value}{unsure}"
            if names:
                return f"{len(names)} of {shared} {_table(table)} are {change}: {first_few(names)}"
            return f"{_table(table)} are {change}{'; the same after rounding' if known else ''}"
        case facts.OneSidedEntries(table, names):
            return f"{len(names)} {_table(table)} on one side only: {first_few(names)}"
        case facts.ComputedOtherwise(name, _):
            return f"the model computes another {name} than golden's did (it is in no checkpoint)"
        case facts.NotFedValues(count, places):
            some = first_few([f"{name or '(root)'} {role} ({why})" for name, role, why in places])
            return f"not fed: {counted(count, 'value')} of golden: {some}"
        case facts.StateMissing(side, rank, step, like, component, reason):
            start = f"{side.value}{_in_rank(rank)} started from step {step} of {like}"
            return f"unverified: {start} without the {component} of that state: {reason}"
        case facts.FeedingChanged(side, rank, name, call, role, path, step, why):
            place = f"{display_name(name)} call {call} {role} {printable(path)} in step {step}"
            return f"unverified: {side.value}{_in_rank(rank)}, {place}: {why}"
    return ""


def _of_settings(fact: FindingFact) -> str:
    """Settings and requests that differ; ``""`` for any other fact."""
    match fact:
        case facts.SettingDiffers(setting, golden, other, side):
            name = _SETTINGS[setting]
            return f"{name}: golden {_shown(golden)}, {side.value} {_shown(other)}"
        case facts.VersionDiffers(package, golden, other, side):
            return f"{package}: golden {_shown(golden)}, {side.value} {_shown(other)}"
        case facts.SurroundingsDiffer(found, side):
            said = [surrounding_words(each, side) for each in found]
            return f"environment: {first_few(said, _MOST_SURROUNDINGS, '; ')}"
        case facts.AttributeDiffers(module, attribute, golden, other, side):
            place = f"{display_name(module)}.{attribute}"
            return f"{place}: golden {golden}, {side.value} {other}"
        case facts.LeftDiffers(module, attribute, golden, other, side):
            ours, theirs = ("unchanged" if each is None else each for each in (golden, other))
            place = f"{display_name(module)}.{attribute}"
            return f"{place} at the end: golden {ours}, {side.value} {theirs}"
        case facts.OneHolds(name, golden, side):
            return f"{name}: only {'golden' if golden else side.value} holds a tensor at the end"
        case facts.LeftUnlooked(name, side):
            return f"{name} of {side.value} holds too many items to be compared"
        case facts.MoreAttributes(count, module, attribute):
            place = f"{display_name(module)}.{attribute}"
            return f"{count} more attributes of modules differ, such as {place}"
        case facts.FlagDiffers(name, golden, candidate):
            return f"{name}: golden {_shown(golden)}, candidate {_shown(candidate)}"
        case facts.LowerPrecision(side, flags):
            return f"{side.value} may compute float32 in fewer bits: {', '.join(flags)}"
        case facts.Saturates(side, effect, flag):
            return f"{side.value} saturates: {effect} ({flag} is off)"
        case facts.ScalerDiffers(golden, other, side):
            ours, theirs = (
                "none" if scale is None else f"scales losses by {scale:g}"
                for scale in (golden, other)
            )
            return f"gradient scaler: golden {ours}, {side.value} {theirs}"
        case facts.WeightsNotRounded(dtype):
            return (
                f"golden's weights are not rounded to {dtype} as the candidate's are, which hides"
                f" small errors; capture it with --round-weights {dtype}"
            )
        case facts.CaptureNote(side, text):
            return f"{side.value}: {text}"
    return ""


def _of_options(fact: FindingFact) -> str:
    """Options without effect, or of two models; ``""`` for any other fact."""
    match fact:
        case OtherModel():
            return other_model_words(fact)
        case facts.MapClash(first, second, new):
            return (
                f"--map: {first} and {second} of golden both become {new}; the first that runs is"
                " compared with it"
            )
        case facts.MapsTaken(maps):
            return maps_taken(maps)
        case facts.MapsProposed(maps):
            return f"the candidate has other names for some of golden's layers{try_maps(maps)}"
        case facts.MatchesNothing(option, value):
            return f"--{option} {value} matches none of golden's layers"
        case facts.LayoutMatchesNothing(layer, role):
            of_role = "" if role == "*" else f" with the role {role}"
            return (
                f"--layout: the rule for {layer}{of_role} applies to none of the candidate's"
                " records, so it tells nothing; its layers have golden's names"
            )
        case facts.LeadsNowhere(text):
            return f"--map {text} leads to no layer of the candidate"
        case facts.RuleJudgesNothing(file, number):
            return (
                f"{file}, rule {number}, applies to none of the candidate's records, so its limit"
                " judges nothing"
            )
    return ""


def _of_baselines(fact: FindingFact) -> str:
    """Which baseline judges, or would; ``""`` for any other fact."""
    match fact:
        case RefusedBaseline():
            return f"{refused_words(fact)}; fixed limits judge"
        case facts.ProperBaseline(cure):
            return (
                f"where golden was captured, run: {suggestion_words(cure)}; or let golden bring its"
                " own: capture --save-state --with-baseline"
            )
        case facts.BaselineHelps(suggestion, then, version):
            where = (
                f" (where golden was captured: there {version[0]} is {version[1]})"
                if version
                else ""
            )
            return (
                f"a baseline tells rounding from a bug: {suggestion_words(suggestion)}{where}, then"
                f" {then}"
            )
        case facts.ProductsRounded(name, cure):
            return (
                f"the candidate may round what goes into float32 products to {name}, the baseline"
                f" does not: {suggestion_words(cure)}"
            )
        case facts.OwnBaselineUnfit(error):
            return f"golden's own baseline does not judge: {error}"
        case facts.NotInBaseline(count, compared, first):
            return (
                f"the baseline has no record of {count} of {compared} compared rows (such as"
                f" {first}), which are judged without it"
            )
    return ""


def other_model_words(found: OtherModel) -> str:
    """That two different models are compared."""
    return (
        "these are two different models, or two configurations of one: "
        f"only {found.alike} of {found.rows} rows have the same name and shape on both sides"
    )


def refused_words(refused: RefusedBaseline) -> str:
    which = "a baseline made here" if refused.path is None else f"the baseline {refused.path}"
    why = other_code_words(refused.why)
    return f"{which} cannot judge, since it does not run golden's code ({why})"


def unfit_words(why: RefusedBaseline | PreflightFinding) -> str:
    """Why a baseline was not used, after a colon."""
    if isinstance(why, RefusedBaseline):
        return f"it does not run golden's code ({other_code_words(why.why)})"
    return message(dataclasses.replace(why, beside_baseline=False))


def suggestion_words(suggestion: Suggestion) -> str:
    """The command; for a script also the precision to compute in."""
    script = f" (COMMAND: golden's script, computing in {suggestion.computes_in} on the CPU)"
    return suggestion.command + (script if suggestion.computes_in else "")


def other_code_words(code: OtherCode) -> str:
    """``transformers is 4.52.1 in golden, 4.51.3 here; net.py differs from golden's``."""
    parts = [
        f"{package} is {ours} in golden, {theirs} here"
        for package, ours, theirs in code.versions[:3]
    ]
    if code.edited:
        differ = "differs" if len(code.edited) == 1 else "differ"
        parts.append(f"{', '.join(code.edited[:3])} {differ} from golden's")
    if code.absent:
        parts.append(f"golden's {', '.join(code.absent[:3])} did not run here")
    parts += [
        f"{display_name(name)}.{key} is {ours!r} in golden, {theirs!r} here"
        for name, key, ours, theirs in code.configured[:3]
    ]
    if code.unrecorded:
        parts.append("a manifest does not say which code ran")
    return "; ".join(parts)


def surrounding_words(found: Surrounding, side: BesideGolden) -> str:
    """``KERNEL=fast in the candidate, not set or not read in golden``."""
    if found.library:
        return f"{found.name} is another build in the {side.value} than in golden"
    # only libraries' variables are always recorded; others if the code reads them
    absent = "not set" if is_a_librarys(found.name) else "not set or not read"
    ours, theirs = (absent if each is None else each for each in (found.golden, found.other))
    if found.other is None:
        return f"{found.name}={ours} in golden, {theirs} in the {side.value}"
    return f"{found.name}={theirs} in the {side.value}, {ours} in golden"


def not_proved_words(why: str | tuple[Surrounding, ...]) -> str:
    """Why the baseline needs a proof."""
    if isinstance(why, str):
        return why
    return "; ".join(surrounding_words(each, BesideGolden.BASELINE) for each in why)
