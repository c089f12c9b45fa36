# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Mystery loops: one hidden cause
#
# *10 to 20 minutes each. Needs: no GPU.* Twelve short scripts that train. Each is slow, or needs too much memory, for one reason.
#
# The first run of a cell puts a copy of the script next to this notebook: `my_gpu_waits.py`. Find the cause in that file, fix it, save it, and run the cell again. The check looks at what the script does, not at its time; what needs a GPU is checked on a simulated one. The losses of all steps must stay as they are, and so must the names of functions.
#
# Three of them have a picture of two steps, recorded on two cores. To see where the time goes, and whether your edit is faster, open a terminal in this folder:
#
# ```sh
# perfkit watch my_gpu_waits.py
# perfkit compare ../../data/puzzles/mysteries/gpu_waits.py my_gpu_waits.py
# ```

# %%
from perfkit import notebook as pk

pk.mystery("gpu_waits")

# %%
pk.lanes("mystery-slow_disk")

# %%
pk.mystery("slow_disk")

# %%
pk.lanes("mystery-larger_set")

# %%
pk.mystery("larger_set")

# %%
pk.mystery("idle_cores")

# %%
pk.mystery("twice_the_memory")

# %%
pk.mystery("out_of_memory")

# %%
pk.mystery("slower_and_slower")

# %%
pk.mystery("only_the_head")

# %%
pk.mystery("many_kernels")

# %%
pk.mystery("three_copies")

# %%
pk.lanes("mystery-busy_workers")

# %%
pk.mystery("busy_workers")

# %%
pk.mystery("compiled")

# %% [markdown]
# [All causes, explained](solutions.ipynb).
