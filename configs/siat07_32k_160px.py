"""SIAT, MLPerf v0.7 open division: batch 32,768 at 160 pixels on 1,024 Ascend 910, 32.4 s.

    python train.py --config=configs/siat07_32k_160px.py --config.data.data_dir=DATA

24 epochs at 32,768: trained at 160 pixels on crops of 45 to 100 % of the area, evaluated at 224 on
the middle 80 %; cosine warm-up and decay, every scale of BatchNorm starts at 1.4. Coefficient and
epsilon are the defaults of the LARS operator, from memory. Its static loss scale of 512 is replaced
by the automatic one.
"""

from ml_collections import ConfigDict

from largebatch.config.recipes import Published, families, sources

PUBLISHED = Published(
    source="mlcommons/training_results_v0.7, SIAT",
    provenance="S",
    devices="1,024 Ascend 910",
    device_count=1024,
    cluster="ascend910",
    epochs=24.0,
    top1_percent=76.05,
    seconds=32.4,
    target_percent=75.9,
    mlperf="v0.7 open",
)

SOURCES = sources(
    S=families.SIAT,
    M="optimizer.trust_coefficient optimizer.epsilon",
    U="data.flip comm.wire",
)


def get_config() -> ConfigDict:
    """1,024 workers of 32 images at 160 pixels."""
    return families.siat_open(workers=1024, length="24 epochs", peak=25.0, warmup="7.6 epochs")
