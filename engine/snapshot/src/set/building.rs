//! Making sets: layers are built beside the published ones, and a new MANIFEST names them.

mod fence;
mod history;
pub mod publisher;
mod rebuild;
mod replica;
pub mod stager;
pub mod steady_file;
pub mod steps;
pub mod storage;
mod tree;

pub use replica::LayerChecks;
pub use tree::SetTree;
