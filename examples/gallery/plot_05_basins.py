"""
The atlas of basins
===================

A small problem has several locally optimal choices of tokens, and training from a random start may end at any of them.
Larger starts end at worse choices more often.
"""

import attsvm

data = attsvm.sphere(2, 3, 2, trials=4, seed=5)
atlas = attsvm.basins(data, scales=(0.1, 1.0, 10.0), starts=60, steps=300)

# %%
# One panel per problem: the share of starts that end at each locally optimal choice.
figure = atlas.plot()
