//! What the programs promise to clients, administrators and operators, seen from outside: `handled`,
//! `handle-admin`, `hdl` and `handle-loadgen`, alone and together.

mod addresses;
mod admin;
mod admin_reload;
mod admin_sessions;
mod administration;
mod adopting;
mod authenticated;
mod batch;
mod deployed_servers;
mod foreign;
mod forwarding;
mod gateway;
mod gateway_proxy;
mod handled;
mod idle;
mod lab;
mod lab_faults;
mod lab_shown;
mod live;
mod lookup_sessions;
mod odd_sites;
mod operators;
mod privileges;
mod publishing;
mod records;
mod reload;
mod remote;
mod running;
mod sessions;
mod takeover;
mod tcp;
mod templates;
mod trains;
mod verifiers;
mod watching;
