"""SIAT, MLPerf v0.7 open division: batch 16,384 at 160 pixels on 512 Ascend 910, 46.8 s.

    python train.py --config=configs/siat07_16k_160px.py --config.data.data_dir=DATA

20 epochs at 16,384, the cheapest published way to 75.9 % (rate 21.0 in its log, 27 in its script):
trained at 160 pixels on crops of 45 to 100 % of the area, evaluated at 224 on the middle 80 %;
cosine warm-up and decay, every scale of BatchNorm starts at 1.4. Coefficient and epsilon are the
defaults of the LARS operator, from memory. Its static loss scale of 512 is replaced by the
automatic one.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, SIAT",
    provenance="S",
    devices="512 Ascend 910",
    device_count=512,
    cluster="ascend910",
    epochs=20.0,
    top1_percent=76.04,
    seconds=46.8,
    target_percent=75.9,
    mlperf="v0.7 open",
)

SOURCES = sources(
    S=families.SIAT,
    M="optimizer.trust_coefficient optimizer.epsilon",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """512 workers of 32 images at 160 pixels."""
    return families.siat_open(workers=512, length="20 epochs", peak=21.0, warmup="5.6 epochs")
