//! Records and sites as JSON.
