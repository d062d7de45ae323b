//! Reports, logs and files of operations of each version.

use crate::corpus::read_each;
use anyhow::ensure;
use handle_formats::batch::BatchReader;
use handle_loadgen::judge::comparison::ComparisonSide;
use handle_loadgen::load::recording::Recording;
use handle_tests::process::{self, hdl, program, succeed};
use handle_tests::test_server;
use handle_worker::Server;
use handle_worker::config::Datapath;
use serde_json::Value as Json;
use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

#[test]
fn reports_of_the_load_generator_are_read() {
    read_each("reports/run.json", |corpus| {
        let run = corpus.path("reports/run.json");
        ComparisonSide::read(&[&run])?;
        let mut html = Command::new(program("handle-loadgen", "handle-loadgen"));
        html.arg("html").arg(&run);
        let page = succeed(html);
        ensure!(page.contains("<h1>"), "a page");
        Ok(())
    });
    read_each("reports/limit.json", |corpus| {
        let server = Server::start(&test_server::config(&corpus.path("sets/exact"), Datapath::Auto))?;
        let (directory, limit) = corpus.copy("reports/limit.json");
        let mut run = Command::new(program("handle-loadgen", "handle-loadgen"));
        run.args(["run", "--target", &server.addresses()[0].to_string(), "--template", "10.5072/url"]);
        run.args(["--rate", "20", "--duration", "1s", "--quiet", "--share-of"]).arg(&limit);
        run.arg("--json").arg(directory.path().join("run.json"));
        // A run beside other load may be invalid.
        ensure!(matches!(process::run(run).status.code(), Some(0 | 3)), "a run");
        server.stop()?;
        let read =
            |path: &Path| -> anyhow::Result<Json> { Ok(serde_json::from_slice(&std::fs::read(path)?)?) };
        let (run, limit) = (read(&directory.path().join("run.json"))?, read(&limit)?);
        ensure!(run["share"]["limit_answers_per_s"] == limit["answers_per_s"], "{}", run["share"]);
        Ok(())
    });
}

#[test]
fn logs_of_queries_are_replayed() {
    read_each("query.log", |corpus| {
        let (recording, _) =
            Recording::read(&corpus.path("query.log"), 2641, &mut || ControlFlow::Continue(()))?;
        let expected = corpus.expected["queries"].as_u64().unwrap();
        ensure!(recording.requests.len() as u64 == expected, "{} requests", recording.requests.len());
        ensure!(recording.skipped == 0, "{} lines are no requests", recording.skipped);
        Ok(())
    });
}

#[test]
fn batch_files_and_their_logs_are_read() {
    read_each("batch.txt", |corpus| {
        let file = BufReader::new(File::open(corpus.path("batch.txt"))?);
        let mut words = Vec::new();
        for block in BatchReader::new(file) {
            words.push(block??.operation.word().to_owned());
        }
        ensure!(words == corpus.expected_texts("batch"), "{words:?}");
        Ok(())
    });
    // Everything was done, so nothing is sent, and no server has to be there.
    read_each("batch.txt.log", |corpus| {
        let (directory, log) = corpus.copy("batch.txt.log");
        let batch = directory.path().join("batch.txt");
        std::fs::copy(corpus.path("batch.txt"), &batch)?;
        let mut resume = hdl(["batch", "--server", "127.0.0.1:9", "--allow-cleartext-secrets", "--resume"]);
        resume.arg(&batch).arg("--log").arg(log);
        succeed(resume);
        Ok(())
    });
}
