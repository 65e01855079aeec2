//! Builds the wrappers around the C++ functions of llama.cpp that its C header does not declare.

fn main() {
    println!("cargo::rerun-if-changed=src/ffi/hidden.cpp");
    cc::Build::new().cpp(true).std("c++17").file("src/ffi/hidden.cpp").compile("forerun_hidden");
}
