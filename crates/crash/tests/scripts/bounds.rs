//! Bounds of the explorations. `make test` takes less of what is slow; `tools/test-full` all of it.

/// `usual`, or `full` in `tools/test-full`, which sets `SELVEDGE_FULL_BOUNDS`.
pub fn bound<T>(usual: T, full: T) -> T {
    match std::env::var_os("SELVEDGE_FULL_BOUNDS") {
        None => usual,
        Some(_) => full,
    }
}
