# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Capstone: 400 → ?
#
# The article took a training from 400 to several thousand samples/s. Now you: a script with ten faults, all of them seen in real training code. *About 60 minutes; a measurement takes about 3. Needs: no GPU, two cores.*
#
# The first run of the next cell puts a copy of the slow script beside this notebook. Edit that file, save it, run the cell again:

# %%
from perfkit import notebook as pk

result = pk.capstone("my_capstone.py")
result

# %% [markdown]
# - **Your score** is your speed as a share of the *speed of light*: the same model on a batch that is already in memory, with a fused optimizer and nothing else around it. Both are measured side by side.
# - **The same training**: each step of the optimizer sees the same 64 photos in the same order, and the losses of the first steps are compared with the slow script's. Otherwise there is no score.
# - More than the whole speed of light is possible for who makes the step itself faster.
#
# To find the faults, watch the script. Each line of what it says is worth a thought:
#
# ```sh
# perfkit watch my_capstone.py --steps 8
# ```
#
# The ten faults, and a script without them: [solution](solutions/6_capstone.ipynb).
