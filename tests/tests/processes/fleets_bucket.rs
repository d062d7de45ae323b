//! Sets on their way through object storage: a server for S3 on this host.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::fleets::{race, ship_and_fetch};
use handle_daemon::clock::now_unix_ms;
use handle_fleet::{FetchOutcome, FleetUrl, SetFetcher, ShipError, ShipOutcome, StorageConfig, location};
use handle_snapshot::set::read_manifest;
use handle_tests::bucket_server::{BucketConditions, BucketServer, KEY_ID, SECRET, options};
use handle_tests::daemon::free_address;
use handle_tests::fleet::{TestFleet, verified, write_secret};
use handle_tests::needs::{TestNeed, has};
use handle_tests::process::{RunningProcess, fail, hdl, program, run, succeed, until};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

const RUNS: &dyn Fn() -> bool = &|| false;

#[test]
fn a_machine_gets_what_is_new_and_nothing_else() {
    ship_and_fetch(&TestFleet::over_s3());
}

#[test]
fn of_two_publishers_only_one_ships() {
    let rounds = std::env::var("HANDLE_RACES").map_or(20, |count| count.parse().unwrap());
    race(&TestFleet::over_s3(), rounds);
}

#[test]
fn large_layers_are_uploaded_in_parts_and_old_ones_are_removed() {
    let fleet = TestFleet::over_s3();
    let mut publisher = fleet.publisher("published", None);
    let (mut shipper, mut fetcher) = (fleet.shipper("published"), fleet.fetcher(None));
    let text = "x".repeat(8000);
    let sets: Vec<_> = (0..4)
        .map(|at| {
            // Parts have 8 MiB.
            let records = if at == 0 { 0..2500 } else { 0..10 };
            let manifest = publisher.publish(records, &format!("{at} {text}"), true);
            assert_eq!(shipper.ship().unwrap(), ShipOutcome::Shipped(manifest.layers[0].len));
            assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
            assert_eq!(verified(&fleet.path("set")).as_ref(), Some(&manifest));
            manifest
        })
        .collect();
    assert!(sets[0].layers[0].len > 2 * (8 << 20), "{}", sets[0].layers[0].len);
    let uploads = std::fs::read_dir(fleet.path("buckets/.uploads")).unwrap().count();
    assert_eq!(uploads, 0, "no upload stays");
    // Listings have several pages.
    for at in 0..7 {
        std::fs::write(fleet.store_dir().join(format!("another-{at}")), "x").unwrap();
    }
    assert_eq!(shipper.collect(now_unix_ms() + 2000).unwrap(), 2, "the last two sets are kept");
    let has = |at: usize| fleet.store_dir().join(&sets[at].layers[0].file).exists();
    assert_eq!([0, 1, 2, 3].map(has), [false, false, true, true]);
    std::fs::remove_file(fleet.store_dir().join(&sets[3].layers[0].file)).unwrap();
    assert_eq!(shipper.collect(now_unix_ms() + 2000).unwrap(), 0);
    assert!(has(3), "a lost layer is uploaded again");
}

#[test]
fn a_server_that_ignores_preconditions_is_refused() {
    let fleet = TestFleet::new();
    fleet.publisher("published", None).publish(0..5, "first", true);
    for conditions in [BucketConditions::IfNoneMatch, BucketConditions::Neither] {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = BucketServer::start_with(&fleet.path("careless"), any, conditions);
        write_secret(&fleet.path("careless-credentials"), &server.options());
        let mut ship = hdl(["ship"]);
        ship.arg(fleet.path("published")).args(["s3://sets/mine", "--follow", "--credentials-file"]);
        ship.arg(fleet.path("careless-credentials"));
        let (code, error) = fail(ship);
        assert!(code == 1 && error.contains("ignores preconditions"), "{conditions:?}: {error}");
        let left: Vec<_> = std::fs::read_dir(fleet.path("careless/sets/mine")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Programs with options of object storage in the environment.
fn with_options(mut command: Command, options: &str) -> Command {
    command.env("HANDLE_FETCH_ALLOW_ROOT", "true").stdin(Stdio::null());
    command.envs(options.lines().filter_map(|line| line.split_once('=')));
    command
}

#[test]
fn credentials_come_from_the_environment_or_a_file_and_are_never_shown() {
    let fleet = TestFleet::over_s3();
    fleet.publisher("published", None).publish(0..50, "first", true);
    let options_of = |secret: &str| options(fleet.bucket().address, secret);
    let ship = |environment: &str, file: Option<&str>| {
        let mut ship = with_options(hdl(["ship"]), environment);
        ship.arg(fleet.path("published")).arg(fleet.url());
        if let Some(file) = file {
            ship.arg("--credentials-file").arg(fleet.path(file));
        }
        ship
    };
    let fetch = |environment: &str| {
        let fetch = Command::new(program("handle-fetch", "handle-fetch"));
        let mut fetch = with_options(fetch, environment);
        fetch.arg(fleet.url()).arg(fleet.path("set")).args(["--once", "--log", "trace"]);
        fetch
    };
    let shows_nothing = |text: &str, secret: &str| {
        assert!(!text.contains(secret) && !text.contains(KEY_ID), "{text}");
    };
    // The wrong secret, and none: the file has precedence over the environment.
    write_secret(&fleet.path("wrong"), &options_of("another-secret/of+nobody"));
    let (code, error) = fail(ship(&options_of(SECRET), Some("wrong")));
    assert!(code == 1 && error.contains("403"), "{code}: {error}");
    shows_nothing(&error, "another-secret");
    let output = run(fetch(&options_of("another-secret/of+nobody")));
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && shown.contains("403"), "{shown}");
    shows_nothing(&shown, "another-secret");

    let shipped = succeed(ship(&options_of("another-secret/of+nobody"), Some("credentials")));
    assert!(shipped.contains("shipped to s3://sets/fleets/mine"), "{shipped}");
    shows_nothing(&shipped, SECRET);
    let output = run(fetch(&options_of(SECRET)));
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && shown.contains("published a new set"), "{shown}");
    shows_nothing(&shown, SECRET);
    assert_eq!(verified(&fleet.path("set")), read_manifest(&fleet.path("published")).ok());

    // A file that others may read is refused.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(fleet.path("credentials"), mode).unwrap();
    let (code, error) = fail(ship("", Some("credentials")));
    assert!(code == 1 && error.contains("permissions too open"), "{code}: {error}");
    shows_nothing(&error, SECRET);
}

#[test]
fn the_s3_of_moto_is_understood() {
    // A shim of pyenv starts, and fails, where no version of Python has the program.
    let help = Command::new("moto_server").arg("--help").output();
    if !has(TestNeed::Moto, help.is_ok_and(|output| output.status.success())) {
        return;
    }
    let port = free_address().port();
    let mut moto = Command::new("moto_server");
    moto.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    moto.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut moto = RunningProcess::start(moto);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    until("moto listens", || {
        assert!(moto.0.try_wait().unwrap().is_none(), "moto_server has ended");
        TcpStream::connect(address).is_ok()
    });
    create_bucket(address);
    let fleet = TestFleet::new();
    write_secret(&fleet.path("credentials"), &options(address, SECRET));
    let storage =
        StorageConfig { credentials_file: Some(fleet.path("credentials")), ..StorageConfig::default() };
    let url: FleetUrl = "s3://sets/fleets/mine".parse().unwrap();
    let store = || location::open(&url, &storage).unwrap();
    let open = |name: &str| {
        let limits =
            handle_fleet::ShipLimits { sets_kept: 1, grace: std::time::Duration::ZERO, ..Default::default() };
        handle_fleet::SetShipper::open(store(), "store", &fleet.path(name), limits).unwrap()
    };
    let mut publisher = fleet.publisher("published", None);
    let mut other = fleet.publisher("other", None);
    other.publish(0..3, "other", true);
    let text = "x".repeat(8000);
    let mut last = publisher.publish(0..1500, &text, true);
    let mut shipper = open("published");
    shipper.ship().unwrap();
    let mut fetcher =
        SetFetcher::open(store(), &fleet.path("set"), None, handle_fleet::FetchLimits::default()).unwrap();
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Unchanged);
    for at in 0..3 {
        last = publisher.publish(0..5, &format!("turn {at}"), true);
        shipper.ship().unwrap();
        assert!(matches!(open("other").ship(), Err(ShipError::Fenced { .. })));
    }
    // Three layers, and the steps of two sets.
    assert_eq!(shipper.collect(now_unix_ms() + 2000).unwrap(), 5);
    assert_eq!(fetcher.fetch(RUNS).unwrap(), FetchOutcome::Published);
    assert_eq!(verified(&fleet.path("set")), Some(last));
}

/// Creates the bucket `sets`, without a signature, which moto does not check.
fn create_bucket(address: SocketAddr) {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "PUT /sets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n";
    let signed = "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request\r\n\r\n";
    stream.write_all(format!("{head}{signed}").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}
