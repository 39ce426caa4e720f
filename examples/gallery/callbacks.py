# ---
# jupytext:
#   formats: py:percent
# ---

# %% [markdown]
# # Callbacks
#
# hello

# %%
print(1)
