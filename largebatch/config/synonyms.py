"""Option names of timm, torchvision, Lightning and Composer, for hints in error messages.

These names are not accepted as aliases. An error message gives the corresponding option and the
argument to use. docs/from_pytorch.md has the same table.
"""

import re
import shlex

_WORDS = {
    "schedule.peak": "lr learning_rate base_lr max_lr peak_lr",
    "schedule.per_256": "blr",
    "schedule.warmup_start": "warmup_lr warmup_lr_init lr_warmup_init",
    "schedule.end": "min_lr final_lr end_lr eta_min",
    "schedule.decay": "sched scheduler lr_scheduler lr_schedule",
    "optimizer.name": "opt optim optimizer optimiser",
    "optimizer.weight_decay": "wd weight_decay l2",
    "optimizer.momentum": "momentum sgd_momentum",
    "optimizer.clip_norm": (
        "clip_grad clip_grad_norm grad_clip grad_clip_norm gradient_clip_val max_grad_norm "
        "gradient_clipping clipping_threshold"
    ),
    "loss.label_smoothing": "smoothing label_smoothing",
    "augment.mixup": "mixup mixup_alpha",
    "augment.cutmix": "cutmix cutmix_alpha",
    "augment.erase": "reprob random_erase random_erasing",
    "loss.target_threshold": "bce_target_thresh",
    "model.name": "arch model model_name",
    "data.image_size": "image_size img_size input_size crop_size train_crop_size resolution",
    "data.threads": "num_workers data_workers loader_workers",
    "run.seed": "seed random_seed manual_seed",
    "run.trackers": "tracker logger log_wandb wandb",
    "run.keep_best": "keep_best save_best save_best_only",
    "run.keep_checkpoints": "checkpoint_hist save_top_k save_num_checkpoints_to_keep",
    "--workdir": "output output_dir out_dir save_dir save_folder log_dir logdir checkpoint_dir",
    "--eval_only": "eval evaluate evaluation validate test_only",
}
_DURATIONS = {
    "schedule.length": {
        "epochs": "epoch epochs num_epochs max_epochs train_epochs n_epochs max_duration",
        "steps": "steps num_steps max_steps train_steps total_steps iterations max_iter",
    },
    "schedule.warmup": {
        "epochs": "warmup warmup_epochs lr_warmup_epochs t_warmup",
        "steps": "warmup_steps num_warmup_steps lr_warmup_steps warmup_iters",
    },
    "run.evaluate_every": {
        "epochs": "val_interval eval_every check_val_every_n_epoch eval_interval",
        "steps": "val_check_interval",
    },
    "run.checkpoint_every": {
        "epochs": "save_every save_interval checkpoint_every checkpoint_interval",
        "steps": "save_steps",
    },
    "run.log_every": {
        "epochs": "",
        "steps": "log_every log_interval print_freq print_every log_every_n_steps",
    },
}
_WEIGHTS = "pretrained initial_checkpoint finetune load_path load_from weights ckpt"
_BATCH = "batch_size batch bs global_batch_size train_batch_size b"
_WORKERS = "workers worker j"
_SPAN = "sync_bn syncbn sync_batchnorm sync_bn_stats"
_ACCUMULATION = (
    "grad_accum grad_accum_steps grad_accumulation gradient_accumulation accum_steps accum_iter "
    "gradient_accumulation_steps accumulate_grad_batches"
)
_SIGMOID = "bce_loss bce"
_POLICY = "aa auto_augment autoaugment"
_EMA = "model_ema ema model_ema_decay ema_decay use_ema"
_MULTIPLIER = "freeze freeze_backbone frozen_layers lr_mult lr_scale backbone_lr layer_decay"
_DTYPE = "amp precision dtype amp_dtype mixed_precision fp16 bf16 half use_amp"
_DATA = "data data_path dataset dataset_path train_dir root imagenet data_root"
NUMBER_FORMATS = {
    "fp32": "float32",
    "32": "float32",
    "float": "float32",
    "full": "float32",
    "amp": "bfloat16",
    "bf16": "bfloat16",
    "amp_bf16": "bfloat16",
    "bf16-mixed": "bfloat16",
    "true": "bfloat16",
    "fp16": "float16",
    "16": "float16",
    "half": "float16",
    "amp_fp16": "float16",
    "16-mixed": "float16",
}
"""Short names of number formats."""
_UNITS = {"ep": "epochs", "epoch": "epochs", "epochs": "epochs", "ba": "steps", "step": "steps"}
_UNITS |= {"steps": "steps"}
_AMOUNT = re.compile(r"([0-9.]+)\s*([a-z]*)")
_FEWEST, _IMAGES = 4, 32  # images per worker in a suggested batch


def advice(word: str, value: str = "") -> str:
    """Suggest an argument for an option name of a different library.

    Args:
      word: the option or flag; its sections and leading dashes are ignored.
      value: its value; empty if there is none.

    Returns:
      The suggestion with the full option name; empty if the word is unknown.
    """
    name = word.strip("-").replace("-", "_").rpartition(".")[2].lower()
    if name in _WEIGHTS.split():
        weights = "" if value.lower() in ("", "true", "1") else value
        return _written("--init_from", weights or "WEIGHTS") + ", a run or a file of weights"
    if name == "data_dir":
        path = value or "PATH"
        return (
            f"{_written('data.source', f'folder:{path}')} for class folders, or "
            f"--config.data.data_dir={path} for prepared TFDS datasets"
        )
    for option, words in _WORDS.items():
        if name in words.split():
            return _written(option, value)
    for option, units in _DURATIONS.items():
        for unit, words in units.items():
            if name in words.split():
                return _written(option, _duration(value, unit))
    if name in _BATCH.split() or word.endswith("batch.size"):
        return _batch(value)
    if name in _WORKERS.split():
        return (
            f"for threads of the input pipeline, {_written('data.threads', value)}; for virtual "
            "workers of the global batch, use batch.workers"
        )
    if name in _SPAN.split():
        return _written("norm.span", "all")
    if name in _ACCUMULATION.split():
        return (
            f"{_written('batch.microbatch', 'auto')}, which finds the largest microbatch that "
            "fits the device memory and accumulates gradients"
        )
    if name in _SIGMOID.split():
        return _written("loss.kind", "sigmoid")
    if name in _POLICY.split():
        if value.lower().startswith(("ta", "trivial")):
            return _written("augment.policy", "trivialaugment")
        is_ours = value.startswith("rand-") and "inc1" in value
        return _written("augment.policy", value if is_ours else "rand-m9-mstd0.5-inc1")
    if name in _EMA.split():
        return _written("schedule.ema", _horizon(value))
    if name in _MULTIPLIER.split():
        factor = "0" if name.startswith(("freeze", "frozen")) else "0.1"
        return _written("optimizer.lr_mults", f"(?!head/).*: {factor}")
    if name in _DTYPE.split():
        return _written("model.dtype", NUMBER_FORMATS.get((value or name).lower(), "bfloat16"))
    if name in _DATA.split():
        return _written("data.source", value or "folder:PATH")
    return ""


def _written(option: str, value: str) -> str:
    argument = option if option.startswith("--") else f"--config.{option}"
    if option != "--eval_only":
        argument += f"={shlex.quote(value) if value else 'VALUE'}"
    return f"use {argument}"


def _duration(value: str, unit: str) -> str:
    match = _AMOUNT.fullmatch(value.strip().lower())
    if match is None:
        return f"90 {unit}"
    return f"{match[1]} {_UNITS.get(match[2], unit)}"


def _horizon(decay: str) -> str:
    """Return the horizon of an average whose steps each keep a share ``decay`` of it."""
    try:
        return f"{1 / (1 - float(decay)):.6g} steps" if 0 < float(decay) < 1 else "5 epochs"
    except ValueError:
        return "5 epochs"


def _batch(value: str) -> str:
    """Suggest the two factors of a global batch."""
    workers, images = "W", "N"
    if value.isascii() and value.isdigit() and 0 < int(value) < 2**31:
        batch = int(value)
        most = max(n for n in range(1, min(_IMAGES, batch) + 1) if batch % n == 0)
        if most >= _FEWEST or most == batch:
            workers, images = str(batch // most), str(most)
    return (
        "the global batch is batch.workers × batch.images_per_worker; use "
        f"--config.batch.workers={workers} --config.batch.images_per_worker={images}"
    )
