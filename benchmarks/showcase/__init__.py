"""`make showcase`: every task, method and paper's table on one real model, and a page of it all."""
