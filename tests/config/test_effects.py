"""Keys without effect: every key of the schema declares when it has one, and whole runs agree with that, bit by bit."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dpfed.config import Config, load_config, parse_config, read_back
from dpfed.config.configuration import deciding, refuse_unmeasured
from dpfed.errors import UserError
from dpfed.files.toml_file import leaves, put
from dpfed.privacy import method
from dpfed.privacy.method import METHODS
from dpfed.privacy.plan import PrivacyPlan
from dpfed.progress import Silent
from dpfed.runs.job import create_job
from dpfed.runs.preflight import Preflight
from dpfed.runs.pretraining import pretrain
from dpfed.runs.records import with_absolute_paths
from dpfed.runs.running import run_job
from dpfed.schema.conditions import When

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIONS = frozenset(f"{section}.options" for section in ("data", "model", "views", "objective", "optimizer"))
SCHEMA = frozenset(leaves(Config().model_dump())) | {"bounding.options"} | OPTIONS

ALWAYS = frozenset(
    """
    name data.source data.size data.resize views.transform model.kind
    model.start objective.name bounding.method bounding.options bounding.microbatch privacy.unit
    privacy.seed privacy.not_covered
    training.device training.precision
    training.checkpoint_every training.commit_every training.keep evaluation.split diagnostics
    """.split()
)  # of bounding.options, every method refuses those that it does not have
# Two other values than the default for every key that has a condition, as far as a run can take them.
OTHERS = {
    "data.path": ("/nowhere/at/all",),
    "data.records": (32, 64),
    "data.validation": (7,),
    "data.test": (9,),
    "data.half": ("first", "second"),
    "data.public": (True,),
    "data.stores": ("elsewhere",),
    "data.keep_features": (False,),
    "views.jitter": (0.9, 0.6),
    "views.brightness": (0.9,),
    "views.contrast": (0.9,),
    "views.saturation": (0.9,),
    "views.hue": (0.3,),
    "views.blur_sigma": ((1.0, 90.0),),
    "views.cached": (2, 3),
    "text_views.sentence_swap": (0.5,),
    "text_views.word_swap": (0.5,),
    "text_views.word_delete": (0.5,),
    "model.architecture": ("ViT-B-32",),
    "model.weights": ("openai",),
    "model.digest": ("0123456789abcdef",),
    "model.start_digest": ("0123456789abcdef",),
    "model.tokenizer": ("words",),
    "model.image": ("resnet18",),
    "model.stem": ("imagenet",),
    "model.width": (16, 24),
    "model.features": ("pyramid",),
    "model.normalisation": ("layer",),
    "model.weight_standardisation": (True,),
    "model.anchors": ("/nowhere/at/all",),
    "model.anchor_count": (4, 6),
    "model.text_width": (24, 32),
    "model.text_layers": (3,),
    "model.text_heads": (4,),
    "model.vocabulary": (512, 128),
    "model.context": (8,),
    "model.embedding": (8, 12),
    "model.head_hidden": (24, 32),
    "adaptation.image": ("full", "frozen"),
    "adaptation.text": ("full", "frozen"),
    "adaptation.rank": (3, 5),
    "adaptation.alpha": (3.0, 5.0),
    "adaptation.image_layers": (("out",),),
    "adaptation.text_layers": (("out",),),
    "objective.temperature": (0.3, 0.7),
    "objective.learn_temperature": (True,),
    "objective.bias": (-3.0,),
    "objective.augmentations": (1,),
    "objective.redundancy": (0.3,),
    "bounding.group_size": (6, 5),
    "bounding.clip_norm": (0.1,),
    "bounding.clipping": ("automatic",),
    "bounding.stability": (0.3,),
    "public.records": (2, 1),
    "public.centring": (0.3, 0.1),
    "public.source": ("shapes", "store"),
    "public.path": ("/nowhere/at/all",),
    "public.digest": ("0123456789abcdef",),
    "public.generated": (32, 48),
    "public.half": ("first", "second"),
    "privacy.delta": (1e-7,),
    "privacy.noise": ("discrete",),
    "privacy.accountant": ("rdp",),
    "privacy.batch": (30,),
    "privacy.steps": (3,),
    "optimizer.name": ("sgd",),
    "optimizer.learning_rate": (0.02,),
    "optimizer.weight_decay": (0.1,),
    "optimizer.ema": (0.5,),
    "optimizer.momentum": (0.3,),
    "optimizer.schedule": ("cosine",),
    "optimizer.warmup": (2,),
    "bounding.pass_records": (16,),
    "progress.share": (0.2,),
    "progress.phase": (2,),
    "progress.quantile": (0.6,),
    "progress.loss_range": (3.0,),
    "evaluation.match": ("unit",),
    "evaluation.templates": (("one {}",),),
    "evaluation.every": (1,),
    "evaluation.records": (20, 30),
    "evaluation.bank": (20, 30),
}
# Without an effect these are refused by the plan, too; of the last ones there is no other value that a run could try.
ELSEWHERE = frozenset(
    "privacy.epsilon privacy.noise_multiplier privacy.per_unit bounding.max_batch bounding.max_group_size bounding.engine "
    "model.text evaluation.tasks views.crop_scale views.crop_ratio views.flip views.grayscale views.blur views.count "
    "views.plain views.shape objective.label".split()
    + [*OPTIONS]
)
# Where they have no effect, the first would be learnt without any gradient, and the second draws views that nothing looks at,
# which moves the other draws.
BREAKS = {"objective.learn_temperature", "objective.augmentations"}


def test_every_key_has_a_condition_or_always_an_effect():
    conditional = {key for key in SCHEMA if deciding(key)}
    assert conditional == SCHEMA - ALWAYS and SCHEMA >= ALWAYS
    assert {other for key in SCHEMA for other in deciding(key)} <= SCHEMA
    assert conditional == OTHERS.keys() | ELSEWHERE, "a new condition wants a value in this file, so that a run can try it"


def test_what_a_section_declares_goes_by_its_own_keys():
    for section, field in Config.model_fields.items():
        for key in getattr(field.annotation, "model_fields", {}).values():
            for when in (one for one in key.metadata if isinstance(one, When)):
                assert {other.partition(".")[0] for other in when.because.split()} == {section}


def tree_of(tiny: dict, **sections) -> dict:
    tree = {**tiny, "privacy": {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 40, "steps": 2, "seed": 1}}
    tree |= {"views": {"crop_scale": [0.5, 1.0]}, "evaluation": {"split": "test", "records": 40}} | copy.deepcopy(sections)
    return tree


IMAGE = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}
CLASSES = {"tasks": ["knn"], "records": 40, "bank": 60}
WHOLE = {"method": "batch", "microbatch": 32}
FREE = {"batch": 40, "steps": 2, "seed": 1}
TIMM = {"kind": "image", "image": "timm/test_vit", "embedding": 16, "head_hidden": 16}
RESNET = {**IMAGE, "image": "resnet18", "width": 4}
SLOWING = {"name": "sgd", "schedule": "cosine", "learning_rate": 3e-3}
BASES = {
    "pairs": {},
    "jitter": {"views": {"jitter": 1.0, "grayscale": 1.0, "brightness": 0.0}, "optimizer": SLOWING},
    "images, whole batch": {"model": IMAGE, "bounding": WHOLE, "objective": {"name": "siglip"}, "evaluation": CLASSES},
    "no privacy": {"model": IMAGE, "bounding": {"method": "none", "engine": "loop"}, "privacy": FREE, "evaluation": CLASSES},
    "automatic": {"bounding": {"clipping": "automatic", "group_size": 4, "engine": "loop", "microbatch": 32}},
    "public": {
        "bounding": {"method": "public", "engine": "loop", "microbatch": 32},
        "public": {"source": "shapes", "generated": 40},
    },
    "timm": {"model": TIMM, "adaptation": {"image": "lora", "rank": 2}, "evaluation": CLASSES},
    "barlow": {"model": RESNET, "objective": {"name": "barlow_twins"}, "evaluation": CLASSES},
}


def observed(tree: dict, folder: Path) -> tuple:
    """All that a run gives but the words of its plan and its configuration."""
    job = create_job(Preflight(Config.unchecked(**tree), folder), Silent())
    with job.run.locked():
        run = run_job(job, Silent())
    results = json.loads(run.results.read_text())
    privacy = {key: results["privacy"].get(key) for key in ("epsilon", "noise_multiplier")}
    weights = {name: value.tolist() for name, value in load_file(run.model / "model.safetensors").items()}
    # A temperature is saved whether or not a loss divides by it; what a loss made of it shows in the weights.
    weights = {name: value for name, value in weights.items() if "temperature" not in name}
    return privacy, results["evaluations"], run.metrics.read_text(), weights


def changed(tree: dict, keys) -> dict:
    tree = copy.deepcopy(tree)
    given, default = (leaves(config.model_dump()) for config in (Config.unchecked(**tree), Config()))
    for key in keys:
        put(tree, key, next(value for value in (*OTHERS[key], default[key]) if value != given[key]))
    return tree


@pytest.fixture
def constant(monkeypatch):
    """The fingerprint holds all numbers of a plan, and seeds the noise: another seed is not an effect."""
    monkeypatch.setattr(PrivacyPlan, "fingerprint", "0" * 16)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("public", "no privacy"))) for name in BASES]
)
def test_keys_without_effect_change_no_bit_of_a_run_all_at_once(tiny, tmp_path, constant, name):
    tree = tree_of(tiny, **BASES[name])
    idle = parse_config(tree).without_effect().keys() - ELSEWHERE - BREAKS
    assert len(idle) > 10
    assert observed(changed(tree, idle), tmp_path / "changed") == observed(tree, tmp_path / "run")


def effects_of(tiny: dict) -> list[tuple[str, str]]:
    """Every key with a rule, and a base where the rule gives it an effect."""
    bases = {}
    for name, sections in BASES.items():
        config = parse_config(tree_of(tiny, **sections))
        bases |= {key: name for key in OTHERS.keys() - config.without_effect().keys() if key not in bases}
    return sorted(bases.items())


@pytest.mark.slow
def test_every_key_with_an_effect_changes_a_run(tiny, tmp_path, constant, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bases = {name: tree_of(tiny, **sections) for name, sections in BASES.items()}
    before = {name: observed(tree, tmp_path / f"base {number}") for number, (name, tree) in enumerate(bases.items())}
    tried = effects_of(tiny)
    silent = []
    for number, (key, name) in enumerate(tried):
        try:
            if observed(changed(bases[name], [key]), tmp_path / f"run {number}") == before[name]:
                silent.append((key, name))
        except UserError as error:
            about = "units|nothing at|no record store|template|labels|give public.path|no longer the one"
            assert key in str(error) or re.search(about, str(error)), f"{key} in {name}: {error}"
    # Sums are exact, whatever the size of a pass. Where generated public records lie changes no bit, and each of these captions
    # is one sentence.
    assert silent == [("bounding.pass_records", "pairs"), ("data.stores", "public"), ("text_views.sentence_swap", "pairs")]
    assert len(tried) > 40


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"data": {"path": "mine"}}, "'data.path' has no effect with data.source = 'shapes' (the default): set data"),
        ({"data": {"source": "scenes", "path": "x", "validation": 5, "test": 6}}, "'data.validation' and 'data.test' have no"),
        ({"data": {"source": "store", "path": "x", "records": 50}}, "'data.records' has no effect with data.source = 'store'"),
        ({"data": {"source": "store", "path": "x", "public": True}}, "'data.public' has no effect with data.source = 'store'"),
        ({"data": {"source": "store", "path": "x", "stores": "s"}}, "'data.stores' has no effect with data.source = 'store'"),
        ({"data": {"source": "folder", "path": "x", "half": "first"}}, "set data.source = 'shapes' or 'scenes'"),
        (
            {"data": {"source": "mine:records", "keep_features": False}},
            "with data.source = 'mine:records': features of a data set of your own are never kept; give a record store",
        ),
        (
            {"views": {"transform": "mine:transform"}, "data": {"keep_features": False}},
            "with views.transform = 'mine:transform': features of views that your own transform makes are never kept; remove",
        ),
        ({"views": {"hue": 0.2}}, "'views.hue' has no effect with views.jitter = 0.0 (the default)"),
        (
            {"text_views": {"word_swap": 0.3}},
            "set model.kind = 'image-text' or 'open_clip', or leave 'text_views.word_swap' out",
        ),
        (
            {"model": {"image": "timm/test_vit", "width": 8}},
            "an encoder that is not dpfed's has its own; set model.image = 'cnn'",
        ),
        ({"model": {"image": "timm/test_vit"}, "adaptation": {"rank": 3}}, "has adapters only with 'lora'; set"),
        ({"model": {"image": "timm/test_vit"}, "adaptation": {"text": "full"}}, "set model.kind = 'open_clip'"),
        ({"model": {"weights": "w.safetensors"}}, "set model.kind = 'open_clip' or model.image = 'timm/NAME'"),
        ({"model": {"architecture": "ViT-B-32"}}, "'model.architecture' has no effect with model.kind = 'image'"),
        ({"model": {"kind": "open_clip", "architecture": "a", "context": 10}}, "an open_clip architecture has its own"),
        ({"adaptation": {"rank": 3, "image": "full"}}, "'adaptation.image' and 'adaptation.rank' have no effect"),
        ({"objective": {"bias": 3.0}}, "'objective.bias' has no effect with objective.name = 'infonce'"),
        ({"bounding": {"method": "batch", "group_size": 4}}, "this method contrasts the whole batch"),
        ({"bounding": {"method": "none"}, "privacy": {"epsilon": 8.0, "delta": 1e-6}}, "'privacy.epsilon' and 'privacy.delta'"),
        ({"bounding": {"method": "dpcl"}, "privacy": {"accountant": "rdp"}}, "only RDP can account"),
        ({"public": {"records": 7}}, "set bounding.method = 'public'"),
        (
            {"bounding": {"max_batch": 50}},
            "set bounding.method = 'batch', 'logit' or 'sample', or leave 'bounding.max_batch' out",
        ),
        ({"model": {"stem": "imagenet"}}, "set model.image = 'resnet18', 'resnet34' or 'resnet50', or leave 'model.stem' out"),
        ({"bounding": {"method": "public", "group_size": 4}}, "every record forms its own group"),
        ({"bounding": {"method": "public"}, "public": {"generated": 99}}, "set public.source = 'shapes'"),
        ({"optimizer": {"momentum": 0.8}}, "set optimizer.name = 'sgd' or 'lars'"),
        ({"optimizer": {"warmup": 99, "schedule": "cosine"}}, "optimizer.schedule"),
        ({"optimizer": {"warmup": 101}}, "optimizer.warmup = 101 exceeds privacy.steps = 100"),
        ({"evaluation": {"split": "none", "every": 5}}, "set evaluation.split = 'validation' or 'test'"),
        ({"evaluation": {"match": "unit"}}, "with model.kind = 'image'"),
        ({"evaluation": {"tasks": ["knn"], "match": "unit"}, "model": {"kind": "image-text"}}, "['knn']: add 'retrieval'"),
    ],
)
def test_idle_keys_are_refused_with_what_would_give_them_effect(tree, said, tmp_path):
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        parse_config(tree)
    assert "--set" not in str(caught.value) and "\n" not in str(caught.value)
    assert all(f"--set {key}=" in caught.value.command for key in re.findall(r"'([a-z_]+\.[a-z_]+)'", str(caught.value)))
    with pytest.raises(UserError, match=re.escape(said)):  # a configuration that is made in a program
        Config(**tree)
    with pytest.raises(UserError, match=re.escape(said)):  # and one that was changed there
        pretrain(Config().model_copy(update=dict(Config.unchecked(**tree))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_says_in_its_own_file_which_keys_it_reads(tmp_path, monkeypatch):
    (tmp_path / "half_batches.py").write_text(
        "from dpfed.privacy.method import Method\n"
        "METHOD = Method('half_batches', '', '', sensitivity=lambda given: 1.0, whole_batch=True, capped=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(method._FILES, "half_batches", "half_batches")
    monkeypatch.setattr("dpfed.config.sections.METHODS", (*METHODS, "half_batches"))
    assert parse_config({"bounding": {"method": "half_batches", "max_batch": 50}}).bounding.max_batch == 50
    with pytest.raises(UserError, match="this method contrasts the whole batch; set bounding.method = 'group'"):
        parse_config({"bounding": {"method": "half_batches", "group_size": 4}})
    with pytest.raises(UserError, match="set bounding.method = 'batch', 'logit', 'sample' or 'half_batches'"):
        parse_config({"bounding": {"max_batch": 50}})


def test_idle_keys_of_a_file_that_dpfed_wrote_are_dropped():
    tree = {"data": {"source": "store", "path": "/x", "records": 50}, "model": {"kind": "image", "text_width": 24, "width": 8}}
    assert Config.unchecked(**tree).data.records == 50
    assert read_back(tree, "old.toml") == Config(data={"source": "store", "path": "/x"}, model={"width": 8})
    with pytest.raises(UserError, match=r"old\.toml: 'data\.records': expected at least 16.*config-invalid"):
        read_back({"data": {"source": "store", "path": "/x", "records": 5}}, "old.toml")


def of(section, **values) -> dict:
    return {section: values}


PARQUET, STORE = of("data", source="parquet", path="/nowhere"), of("data", source="store", path="/nowhere")
PAIRS, CLIP = of("model", kind="image-text"), of("model", kind="open_clip", architecture="a")
ENCODER = of("model", image="timm/test_vit")
FROZEN = ENCODER | of("adaptation", image="frozen")
KEYS_OF_SHAPES = "data.half data.keep_features data.records data.stores"
NO_COLOUR = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
STEPS_OF = [  # from one configuration to another: which keys lose their effect
    (PARQUET, {}, "data.path data.public data.test data.validation"),
    (PARQUET, STORE, "data.public data.stores data.test data.validation"),
    ({}, STORE, "data.half data.records data.stores"),
    ({}, of("data", source="scenes", path="/nowhere"), "data.records"),
    (of("views", jitter=1.0), {}, "views.brightness views.contrast views.hue views.saturation"),
    (of("views", jitter=1.0), of("views", jitter=1.0, **NO_COLOUR), "views.jitter"),
    (of("views", jitter=1.0), of("views", jitter=1.0, grayscale=1.0), "views.hue views.saturation"),
    (of("views", blur=0.5), {}, "views.blur_sigma"),
    (ENCODER | of("adaptation", image="frozen"), ENCODER, "views.cached"),
    (FROZEN | of("views", cached=2), FROZEN, "data.keep_features"),
    (FROZEN | of("views", cached=2), FROZEN | of("views", cached=2) | of("data", source="mine:records"), KEYS_OF_SHAPES),
    (of("bounding", clipping="automatic"), {}, "bounding.stability"),
    ({}, of("bounding", clipping="automatic"), "bounding.clip_norm"),
    ({"diagnostics": "private"}, {}, "progress.loss_range progress.phase progress.quantile progress.share"),
    (
        PAIRS,
        {},
        "evaluation.match evaluation.templates model.context model.text model.text_heads model.text_layers model.text_width "
        "model.vocabulary text_views.sentence_swap text_views.word_delete text_views.word_swap",
    ),
    (
        PAIRS,
        CLIP,
        "model.context model.embedding model.features model.image model.normalisation model.text model.text_heads "
        "model.text_layers model.text_width model.vocabulary model.weight_standardisation model.width",
    ),
    ({}, PAIRS, "model.head_hidden"),
    (
        CLIP,
        PAIRS,
        "adaptation.alpha adaptation.image adaptation.image_layers adaptation.rank adaptation.text adaptation.text_layers "
        "model.architecture model.digest model.tokenizer model.weights",
    ),
    (of("model", image="resnet18", normalisation="batch"), {}, "model.anchor_count model.anchors model.stem"),
    (
        CLIP | of("adaptation", text="frozen"),
        CLIP | of("adaptation", image="frozen", text="frozen"),
        "adaptation.alpha adaptation.image_layers adaptation.rank",
    ),
    (CLIP, CLIP | of("adaptation", text="full"), "adaptation.text_layers"),
    ({}, ENCODER, "model.features model.normalisation model.weight_standardisation model.width"),
    (ENCODER, {}, "adaptation.image model.digest model.weights"),
    (ENCODER | of("adaptation", image="lora"), ENCODER, "adaptation.alpha adaptation.image_layers adaptation.rank"),
    (
        of("objective", name="siglip"),
        of("objective", name="barlow_twins"),
        "objective.augmentations objective.bias objective.learn_temperature objective.temperature",
    ),
    (of("objective", name="barlow_twins"), {}, "objective.redundancy"),
    ({}, of("bounding", method="batch"), "bounding.engine bounding.group_size bounding.max_group_size bounding.pass_records"),
    (of("bounding", method="sample"), {}, "bounding.max_batch"),
    (of("bounding", method="public"), {}, "public.centring public.digest public.path public.records public.source"),
    ({}, of("bounding", method="public"), "bounding.group_size bounding.max_group_size"),
    (
        {},
        of("bounding", method="none"),
        "bounding.clip_norm bounding.clipping privacy.accountant privacy.delta privacy.epsilon privacy.noise "
        "privacy.noise_multiplier",
    ),
    (of("bounding", method="released"), of("bounding", method="dpcl"), "privacy.accountant"),
    (of("privacy", unit="user"), {}, "privacy.per_unit"),
    (of("optimizer", name="sgd"), {}, "optimizer.momentum"),
    ({}, of("optimizer", warmup=1), "optimizer.warmup"),
    (of("optimizer", warmup=98), of("optimizer", warmup=99), "optimizer.schedule"),
    (
        PAIRS,
        PAIRS | of("evaluation", split="none"),
        "evaluation.bank evaluation.every evaluation.match evaluation.records evaluation.tasks evaluation.templates",
    ),
    (PAIRS, PAIRS | of("evaluation", tasks=["knn"]), "evaluation.match evaluation.templates"),
    (PAIRS, PAIRS | of("evaluation", tasks=["retrieval"]), "evaluation.bank evaluation.templates"),
]


@pytest.mark.parametrize(("before", "after", "lost"), STEPS_OF)
def test_a_changed_choice_takes_the_effect_from_these_keys_alone(before, after, lost):
    idle = [Config.unchecked(**tree).without_effect().keys() for tree in (before, after)]
    assert idle[1] - idle[0] == set(lost.split())


def test_what_a_given_store_decides_itself_is_said_for_each_key(shapes):
    tree = {"data": {"source": "folder", "path": str(shapes.path), "validation": 5, "test": 6, "public": True}}
    with pytest.raises(UserError, match="setting-idle") as caught:
        parse_config(tree)
    divided, marked = (part for part in str(caught.value).split("; ") if "no effect" in part)
    assert "'data.validation' and 'data.test' have" in divided and "divided when it was imported" in str(caught.value)
    assert "'data.public' has" in marked and "whether its records are public" in marked


def test_the_advice_for_the_command_line_is_valid(shapes):
    over = ["data.source=store", f"data.path={shapes.path}"]
    with pytest.raises(UserError) as caught:
        load_config(CONFIGS / "cifar10-cpu.toml", over)
    assert caught.value.command.endswith(" --set data.validation= --set data.public=")
    assert load_config(CONFIGS / "cifar10-cpu.toml", [*over, "data.validation=", "data.public="]).data.source == "store"


def test_settings_of_impossible_tasks_are_refused_before_a_run(tiny, tmp_path, monkeypatch):
    tiny["evaluation"] = {"bank": 50, "templates": ["one {}"]}
    config = parse_config(tiny)  # as far as the configuration tells, everything may be measured
    refuse_unmeasured(config, ("retrieval", "zero_shot", "linear"))
    only = "these records allow only the tasks retrieval and zero_shot. Leave it"
    with pytest.raises(UserError, match=f"'evaluation.bank' .*{only}.*setting-idle"):
        refuse_unmeasured(config, ("retrieval", "zero_shot"))
    refuse_unmeasured(config, ())
    monkeypatch.setattr("dpfed.runs.build.tasks_of", lambda *_: ("retrieval",))
    with pytest.raises(UserError, match="'evaluation.templates' and 'evaluation.bank' .*setting-idle"):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resolved_configuration_of_every_base_reads_back(tiny, tmp_path):
    for sections in BASES.values():
        config = with_absolute_paths(parse_config(tree_of(tiny, **sections)))
        path = tmp_path / "config.toml"
        path.write_text(config.dump())
        assert load_config(path) == config
        assert config.effective() == config
