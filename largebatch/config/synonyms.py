"""Option names of timm, torchvision, Lightning and Composer, for hints in error messages.

These names are not accepted as aliases. An error message gives the argument to use instead.
docs/from_pytorch.md has the same table.
"""

import shlex

_VALUE = "VALUE"
_ARGUMENTS = {
    "--config.schedule.peak=VALUE": "lr learning_rate base_lr max_lr peak_lr",
    "--config.schedule.per_256=VALUE": "blr",
    "--config.schedule.warmup_start=VALUE": "warmup_lr warmup_lr_init lr_warmup_init",
    "--config.schedule.end=VALUE": "min_lr final_lr end_lr eta_min",
    "--config.schedule.decay=VALUE": "sched scheduler lr_scheduler lr_schedule",
    "--config.schedule.length='90 epochs'": (
        "epoch epochs num_epochs max_epochs train_epochs n_epochs max_duration"
    ),
    "--config.schedule.length='5000 steps'": (
        "steps num_steps max_steps train_steps total_steps iterations max_iter"
    ),
    "--config.schedule.warmup='5 epochs'": (
        "warmup warmup_epochs lr_warmup_epochs t_warmup warmup_steps num_warmup_steps "
        "lr_warmup_steps warmup_iters"
    ),
    "--config.schedule.ema='5 epochs'": "model_ema ema model_ema_decay ema_decay use_ema",
    "--config.optimizer.name=VALUE": "opt optim optimizer optimiser",
    "--config.optimizer.weight_decay=VALUE": "wd weight_decay l2",
    "--config.optimizer.momentum=VALUE": "momentum sgd_momentum",
    "--config.optimizer.clip_norm=VALUE": (
        "clip_grad clip_grad_norm grad_clip grad_clip_norm gradient_clip_val max_grad_norm "
        "gradient_clipping clipping_threshold"
    ),
    "--config.optimizer.lr_mults='(?!head/).*: 0.1'": (
        "freeze freeze_backbone frozen_layers lr_mult lr_scale backbone_lr layer_decay"
    ),
    "--config.loss.label_smoothing=VALUE": "smoothing label_smoothing",
    "--config.loss.kind=sigmoid": "bce_loss bce",
    "--config.loss.target_threshold=VALUE": "bce_target_thresh",
    "--config.augment.policy=rand-m9-mstd0.5-inc1": "aa auto_augment autoaugment",
    "--config.augment.mixup=VALUE": "mixup mixup_alpha",
    "--config.augment.cutmix=VALUE": "cutmix cutmix_alpha",
    "--config.augment.erase=VALUE": "reprob random_erase random_erasing",
    "--config.model.name=VALUE": "arch model model_name",
    "--config.model.dtype=bfloat16": (
        "amp precision dtype amp_dtype mixed_precision fp16 bf16 half use_amp"
    ),
    "--config.norm.span=all": "sync_bn syncbn sync_batchnorm sync_bn_stats",
    "--config.batch.workers=W --config.batch.images_per_worker=N (global batch W × N)": (
        "batch_size batch bs global_batch_size train_batch_size b"
    ),
    "--config.batch.microbatch=auto": (
        "grad_accum grad_accum_steps grad_accumulation gradient_accumulation accum_steps "
        "accum_iter gradient_accumulation_steps accumulate_grad_batches"
    ),
    "--config.data.source=VALUE": (
        "data data_path dataset dataset_path train_dir root imagenet data_root data_dir"
    ),
    "--config.data.image_size=VALUE": (
        "image_size img_size input_size crop_size train_crop_size resolution"
    ),
    "--config.data.threads=VALUE": (
        "num_workers data_workers loader_workers workers worker j"  # not batch.workers
    ),
    "--config.run.seed=VALUE": "seed random_seed manual_seed",
    "--config.run.trackers=VALUE": "tracker logger log_wandb wandb",
    "--config.run.keep_best=true": "keep_best save_best save_best_only",
    "--config.run.keep_checkpoints=VALUE": (
        "checkpoint_hist save_top_k save_num_checkpoints_to_keep"
    ),
    "--config.run.evaluate_every='1 epochs'": (
        "val_interval eval_every check_val_every_n_epoch eval_interval val_check_interval"
    ),
    "--config.run.checkpoint_every='1 epochs'": (
        "save_every save_interval checkpoint_every checkpoint_interval save_steps"
    ),
    "--config.run.log_every='10 steps'": (
        "log_every log_interval print_freq print_every log_every_n_steps"
    ),
    "--init_from=VALUE": "pretrained initial_checkpoint finetune load_path load_from weights ckpt",
    "--workdir=VALUE": (
        "output output_dir out_dir save_dir save_folder log_dir logdir checkpoint_dir"
    ),
    "--eval_only": "eval evaluate evaluation validate test_only",
}
"""Argument by the words of other libraries; VALUE is what the user gave."""


def advice(word: str, value: str = "") -> str:
    """Suggest an argument for an option name of a different library.

    Args:
      word: the option or flag; its sections and leading dashes are ignored.
      value: its value; empty if there is none.

    Returns:
      The suggestion with the full option name; empty if the word is unknown.
    """
    name = word.strip("-").replace("-", "_").rpartition(".")[2].lower()
    for argument, words in _ARGUMENTS.items():
        if name in words.split():
            return f"use {argument.replace(_VALUE, shlex.quote(value) if value else _VALUE)}"
    return ""
