"""The paper's figures and tables, one module each. ``python -m experiments.NAME [--quick]`` runs, records and draws one."""
