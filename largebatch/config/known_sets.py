"""Sizes of public data sets, for what is decided before they are opened or without them."""

KNOWN_SETS: dict[str, tuple[int, int, int]] = {
    "tfds:imagenet2012": (1_281_167, 50_000, 1_000),
    "tfds:imagenette/320px-v2": (9_469, 3_925, 10),
    "folder:imagenette2-320": (9_469, 3_925, 10),
    "digits": (1_437, 360, 10),
}
"""Training and validation examples, and classes; as TFDS counts them."""
