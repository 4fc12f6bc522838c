"""
The regularization path
=======================

The best W within a ball, as the ball grows: the path turns towards the max-margin solution like training does, without
an optimizer. The theorems about paths need fewer conditions than those about descent.
"""

import attsvm

data = attsvm.sphere(4, 5, 8, trials=10, seed=6)
path = attsvm.regularization_path(data, "l2", radii=[1, 3, 10, 30, 100])

# %%
# The correlation with the solution of the optimal tokens grows with the radius.
ax = path.plot()
