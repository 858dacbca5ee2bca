"""The paper's figures and tables, one module each. ``nestgp reproduce NAME [--quick]`` runs, records and draws one."""
