"""``jumok models``: the embedded models."""


def models() -> None:
    """List the embedded models, and where they are kept."""
    from jumok.model.zoo import ZOO, cache_folder

    for name, entry in ZOO.items():
        folder = cache_folder() / f"{name}-{entry.version}"
        kept = (folder / "model.safetensors").is_file()
        print(f"{name:8} {entry.summary}")
        where = f"kept in {folder}" if kept else "not fetched yet"
        print(f"{'':8} {where} ({entry.sizes})")
    print(f"Models are kept in {cache_folder()}; JUMOK_CACHE names another folder.")
