"""Every architecture of the installed transformers, tiny, to be watched and compared."""
