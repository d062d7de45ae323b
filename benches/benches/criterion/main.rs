//! The criterion benches, one module for each subject. `cargo bench -p handle-benches -- NAME` runs
//! those whose names contain NAME.

mod build;
mod cache;
mod codec;
mod datapath;
mod lookup;
mod rate_limit;
mod resolver;
mod signing;
mod watching;

use criterion::Criterion;

struct BenchModule {
    /// A filter that begins with one of these names selects the module.
    groups: &'static [&'static str],
    run: fn(),
}

const fn module(groups: &'static [&'static str], run: fn()) -> BenchModule {
    BenchModule { groups, run }
}

const MODULES: [BenchModule; 9] = [
    module(&["build"], build::benches),
    module(&["cache"], cache::benches),
    module(&["decode", "values", "site", "json"], codec::benches),
    module(&["datapath"], datapath::benches),
    module(&["lookup", "below_deltas"], lookup::benches),
    module(&["rate_limit"], rate_limit::benches),
    module(&["resolver"], resolver::benches),
    module(&["signature", "mac", "answer", "agreement"], signing::benches),
    module(&["watching", "query_log"], watching::benches),
];

/// Criterion filters single benches, but not their setup, which takes seconds to minutes. If a
/// filter begins with the name of a group, only modules with such a group are started; any other
/// filter starts all modules.
fn main() {
    let is_selected = |module: &&BenchModule| {
        std::env::args().skip(1).any(|arg| module.groups.iter().any(|group| arg.starts_with(group)))
    };
    let is_any_selected = MODULES.iter().any(|module| is_selected(&module));
    for module in MODULES.iter().filter(|module| !is_any_selected || is_selected(module)) {
        (module.run)();
    }
    Criterion::default().configure_from_args().final_summary();
}
