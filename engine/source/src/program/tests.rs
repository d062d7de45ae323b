use super::*;
use std::path::Path;
use tokio::runtime::Runtime;

/// Answers every question with one value.
const ANSWER: &str = r#"answer() { sed 's/^{"id":\([0-9]*\),"handle":"\([^"]*\)"}$/{"id":\1,"handle":"\2","values":[{"index":1,"type":"URL","data":"x"}]}/'; }"#;

fn start(script: &str, change: impl FnOnce(&mut SourceConfig)) -> (ProgramSource, Runtime) {
    let command = vec!["/bin/sh".to_owned(), "-c".to_owned(), format!("{ANSWER}\n{script}")];
    let mut config = SourceConfig { command, answer_bytes: 1024, ..SourceConfig::default() };
    // Longer than the machine may stand still.
    config.timeout_ms = 20_000;
    change(&mut config);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    (ProgramSource::start(&config, true, runtime.handle().clone()), runtime)
}

fn values_count(answer: SourceAnswer) -> usize {
    answer.unwrap().unwrap().view().values.len()
}

/// Lines of a file that a script writes.
fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "the condition was not met");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn questions_are_answered_in_any_order() {
    let script = r#"
        read a; read b; read c
        for line in "$c" "$b"; do echo "$line" | answer; done
        id=${a#*:}; echo "{\"id\":${id%%,*},\"responseCode\":100}"
        while read line; do id=${line#*:}; echo "{\"id\":${id%%,*},\"responseCode\":2,\"message\":\"no\"}"; done"#;
    let (source, _runtime) = start(script, |_| ());
    std::thread::scope(|scope| {
        let source = &source;
        let asked: Vec<_> = ["10.1/A", "10.1/B", "10.1/\u{fc}"]
            .map(|key| scope.spawn(move || source.record(key.as_bytes())))
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect();
        assert_eq!(asked.iter().filter(|answer| answer.is_none()).count(), 1);
    });
    assert_eq!(source.record(b"10.1/A"), Err(SourceError::Refused("no".to_owned())));
    assert_eq!(source.record(b"10.1/\xff"), Ok(None), "JSON has no such name");
}

#[test]
fn a_program_that_lies_or_dies_is_started_again() {
    for (script, expected) in [
        ("read line; echo nonsense", "breaks the contract"),
        (r#"read line; echo '{"id":77,"responseCode":100}'; cat"#, "which was not asked"),
        (r#"echo '{"id":0,"responseCode":100}'; cat"#, "which was not asked"),
        ("read line; head -c 1025 /dev/zero; cat", "longer than"),
        ("read line; yes | tr -d '\\n'", "longer than"),
        ("read line; exit 3", "exit status: 3"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let starts = directory.path().join("starts");
        let shown = starts.display();
        let first = format!("echo >>{shown}; if [ $(wc -l <{shown}) = 1 ]; then {script}; exit; fi");
        let (source, _runtime) =
            start(&format!("{first}\nwhile read l; do echo \"$l\" | answer; done"), |_| ());
        let error = source.record(b"10.1/A").unwrap_err().to_string();
        assert!(error.contains(expected), "{script}: {error}");
        until(|| lines(&starts) == 2);
        assert_eq!(values_count(source.record(b"10.1/A")), 1, "{script}");
    }
}

#[test]
fn a_line_at_the_limit_is_read() {
    let pad = |len: usize| {
        format!(r#"read l; printf '{{"id":1,"responseCode":100}}%{}s\n' ''; cat >/dev/null"#, len - 27)
    };
    let (source, _runtime) = start(&pad(1024), |_| ());
    assert_eq!(source.record(b"10.1/A"), Ok(None));
    let (source, _runtime) = start(&pad(1025), |_| ());
    assert_eq!(source.record(b"10.1/A"), Err(SourceError::TooLong));
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children() {
    let directory = tempfile::tempdir().unwrap();
    let starts = directory.path().join("starts");
    // The child has the pipes, too, and outlives its parent.
    let script = format!("sleep 1000 & echo $! >>{}; wait", starts.display());
    let (source, _runtime) = start(&script, |config| config.timeout_ms = 100);
    until(|| lines(&starts) == 1);
    assert_eq!(source.record(b"10.1/A"), Err(SourceError::Late));
    until(|| lines(&starts) == 2);
    let child = std::fs::read_to_string(&starts).unwrap().lines().next().unwrap().to_owned();
    let state = Path::new("/proc").join(&child).join("stat");
    // A killed process may wait for its new parent.
    until(|| std::fs::read_to_string(&state).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn an_answer_that_comes_too_late_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark");
    let script = format!(
        r#"read a; echo >{0}; read b; echo "$b" | answer
        while [ $(wc -l <{0}) = 1 ]; do sleep 0.01; done
        read c; echo "$a" | answer; echo "$c" | answer; cat >/dev/null"#,
        mark.display()
    );
    let (source, _runtime) = start(&script, |config| config.timeout_ms = 3000);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| source.record(b"10.1/A"));
        until(|| lines(&mark) == 1);
        assert_eq!(values_count(source.record(b"10.1/B")), 1);
        assert_eq!(first.join().unwrap(), Err(SourceError::Late));
    });
    std::fs::write(&mark, "\n\n").unwrap();
    assert_eq!(values_count(source.record(b"10.1/C")), 1, "the same program answers");
}

#[test]
fn a_program_that_cannot_be_started_is_unreachable() {
    let (source, _runtime) = start("", |config| config.command = vec!["/no/such/program".to_owned()]);
    let error = source.record(b"10.1/A").unwrap_err();
    assert!(matches!(&error, SourceError::Unreachable(why) if why.contains("No such file")), "{error}");
}

#[test]
fn a_program_that_does_not_read_holds_up_nobody() {
    let (source, _runtime) = start("exec sleep 1000", |config| {
        (config.timeout_ms, config.outstanding) = (300, 64);
    });
    // Together more than a pipe takes.
    let key = [b"10.1/", &[b'A'; 2000][..]].concat();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| assert!(source.record(&key).unwrap_err().is_silence()));
        }
    });
}
