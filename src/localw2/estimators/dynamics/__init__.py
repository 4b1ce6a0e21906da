"""``LocalW2ODE``: differential equations whose parameters vary from trajectory to trajectory."""
