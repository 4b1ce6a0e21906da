"""For people: estimators with scikit-learn's conventions, the whole chain behind fit and sample."""
