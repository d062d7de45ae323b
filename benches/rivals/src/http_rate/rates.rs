//! Answers per second.

use super::load::{HttpLoad, LoadTurn, ratio, spread};
use super::servers::{HttpForm, HttpServers};
use super::{Args, say};
use comfy_table::Table;
use handle_loadgen::Protocol;
use serde_json::json;
use std::time::Duration;

/// A load, and the one that it is compared with.
struct ComparedLoad<'s> {
    load: HttpLoad<'s>,
    base: Option<usize>,
}

fn loads(servers: &HttpServers) -> Vec<ComparedLoad<'_>> {
    let mut loads = Vec::new();
    for form in HttpForm::ALL {
        let (base, bare, gateway) = (loads.len(), servers.bare(form), &servers.gateway);
        let of = |name, server, protocol| HttpLoad { name, server, form, protocol };
        let mut add = |load, base| loads.push(ComparedLoad { load, base });
        add(of("bare hyper", bare, Protocol::Redirect), None);
        add(of("redirect", gateway, Protocol::Redirect), Some(base));
        add(of("JSON", gateway, Protocol::Json), Some(base));
        if let Some(nginx) = servers.nginx.as_ref().filter(|_| form == HttpForm::Http1) {
            add(of("nginx", nginx, Protocol::Redirect), Some(base));
        }
    }
    loads
}

pub(super) fn measure(args: &Args, servers: &HttpServers) -> anyhow::Result<serde_json::Value> {
    let loads = loads(servers);
    let duration = Duration::from_secs_f64(args.seconds);
    let mut turns: Vec<Vec<LoadTurn>> = loads.iter().map(|_| Vec::new()).collect();
    // The first turn of each load reads its records into memory.
    for compared in &loads {
        compared.load.run(args, duration / 4)?;
    }
    for _ in 0..args.rounds {
        for (compared, turns) in loads.iter().zip(&mut turns) {
            turns.push(compared.load.run(args, duration)?);
        }
    }
    let mut table = Table::new();
    table.set_header([
        "over",
        "server",
        "answers/s",
        "of bare hyper",
        "CPU us/answer",
        "by CPU",
        "server, load busy",
    ]);
    let mut rows = Vec::new();
    for (ComparedLoad { load, base }, of_load) in loads.iter().zip(&turns) {
        let (rate, cpu) = (spread(of_load, |t| t.rate), spread(of_load, |t| t.cpu_us));
        let (busy, load_busy) = (spread(of_load, |t| t.busy), spread(of_load, |t| t.load_busy));
        let share = base.map(|base| ratio(of_load, &turns[base], |t| t.rate));
        let cpu_share = base.map(|base| ratio(of_load, &turns[base], |t| 1.0 / t.cpu_us));
        let shown = |share: Option<handle_benches::spread::Spread>| share.map(|it| format!("{it:.2}"));
        table.add_row([
            load.form.name().to_owned(),
            load.name.to_owned(),
            format!("{rate:.0}"),
            shown(share).unwrap_or_default(),
            format!("{cpu:.2}"),
            shown(cpu_share).unwrap_or_default(),
            format!("{:.2}, {:.2}", busy.median, load_busy.median),
        ]);
        rows.push(json!({
            "over": load.form.name(), "server": load.name, "answers_per_s": rate.to_json(),
            "cpu_us": cpu.to_json(), "busy": busy.to_json(), "load_busy": load_busy.to_json(), "share": share.map(|it| it.to_json()),
            "share_by_cpu": cpu_share.map(|it| it.to_json()),
        }));
    }
    say(args, &table.to_string());
    let position = |name| loads.iter().position(|it| it.load.name == name);
    let to_nginx = position("redirect").zip(position("nginx")).map(|(redirect, nginx)| {
        let rate = ratio(&turns[redirect], &turns[nginx], |t| t.rate);
        (rate, ratio(&turns[redirect], &turns[nginx], |t| 1.0 / t.cpu_us))
    });
    match &to_nginx {
        Some((rate, cpu)) => say(args, &format!("redirects to those of nginx: {rate:.2}; by CPU: {cpu:.2}")),
        None => say(args, "nginx is not installed (Debian package nginx-light): not compared"),
    }
    let to_nginx = to_nginx.map(|(rate, cpu)| json!({ "rate": rate.to_json(), "by_cpu": cpu.to_json() }));
    Ok(json!({ "loads": rows, "redirect_to_nginx": to_nginx }))
}
