"""The scripts' own folder is put on the path, as Python does for a script that it runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
