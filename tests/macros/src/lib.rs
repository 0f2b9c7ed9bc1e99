//! Attribute for integration tests. It stands in for the built-in `#[test]`, whose harness cannot
//! ignore a test while it runs.

use proc_macro::{TokenStream, TokenTree};

/// Registers a function without arguments as a test, under its module path and name. With the
/// option `alone`, no other test runs beside it.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    let Some(name) = name_of(function.clone()) else {
        return "compile_error!(\"#[test] goes on a function\");".parse().unwrap_or_default();
    };
    let is_alone = options.to_string() == "alone";
    let row = format!(
        "::memwatch_tests::harness::submit! {{ ::memwatch_tests::harness::Test {{ \
            module: module_path!(), name: \"{name}\", is_alone: {is_alone}, run: {name} }} }}"
    );
    function.into_iter().chain(row.parse::<TokenStream>().unwrap_or_default()).collect()
}

/// Returns the identifier after `fn`.
fn name_of(function: TokenStream) -> Option<String> {
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn");
    let name = function.into_iter().skip_while(|token| !is_fn(token)).nth(1)?;
    Some(name.to_string())
}
