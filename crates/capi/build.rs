//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libselvedge.so.0");
    // Threads have destructors in it: it must not go before them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
