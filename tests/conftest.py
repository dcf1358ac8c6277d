"""Eight fake CPU devices, so that meshes of 1, 2, 4 and 8 can be made in one process."""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
