use super::*;
use crate::registration::request::RequestOrigin;
use handle_proto::data::SiteBuilder;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;

fn key() -> Vec<u8> {
    let counted = |field: &[u8]| [&u32::try_from(field.len()).unwrap().to_be_bytes(), field].concat();
    [counted(b"RSA_PUB_KEY"), vec![0, 0], counted(&[1, 0, 1]), counted(&[0x40; 128]), vec![0; 4]].concat()
}

fn request(last: u8, unix_s: u64) -> (RequestToken, RegistrationRequest) {
    let token = RequestToken::generate();
    let origin = RequestOrigin { token, unix_s, source: IpAddr::from([192, 0, 2, last]) };
    let mut request = RegistrationRequest::new(origin, SiteBuilder::new().build().as_bytes().to_vec(), key());
    request.details.note = "two\nlines \"quoted\" ü".to_owned();
    (token, request)
}

fn open(directory: &Path) -> Arc<RegistrationStore> {
    Arc::new(RegistrationStore::open(directory).unwrap())
}

fn refused() -> RequestState {
    RequestState::Refused { reason: "no".to_owned(), by: "300:0.NA/10".to_owned(), unix_s: 9 }
}

fn limits() -> RegistrationConfig {
    RegistrationConfig::default()
}

#[test]
fn requests_are_there_again_in_every_state_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new");
    let states = [
        RequestState::Pending,
        RequestState::Accepting { prefix: "10.1".to_owned(), by: "300:a/b".to_owned() },
        RequestState::Accepted { prefix: "10.1".to_owned(), by: "300:a/b".to_owned(), unix_s: 7 },
        refused(),
    ];
    let store = open(&path);
    let requests: Vec<_> = states.iter().zip(1..).map(|(_, at)| request(at, at.into())).collect();
    for ((_, request), state) in requests.iter().zip(&states) {
        store.add(request.clone(), &limits()).unwrap();
        store.claim(request.id()).unwrap().set(state.clone()).unwrap();
        let file = fs::metadata(store.path(request.id(), FILE_END)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
    }
    let before = store.all();
    assert_eq!(before.iter().map(|it| it.submitted_unix_s).collect::<Vec<_>>(), [2, 1, 4, 3]);
    assert!(RegistrationStore::open(&path).unwrap_err().to_string().contains("another process"));
    drop(store);
    // What a crash leaves behind, and files of others.
    let id = requests[0].1.id();
    fs::write(path.join(format!("{id}{UNFINISHED_END}")), "{").unwrap();
    fs::write(path.join("notes.json"), "{").unwrap();
    let damaged = request(9, 9).1;
    let half = &damaged.encode()[..100];
    fs::write(path.join(format!("{}{FILE_END}", damaged.id())), half).unwrap();
    let renamed = path.join(format!("{}{FILE_END}", request(9, 9).1.id()));
    fs::copy(path.join(format!("{id}{FILE_END}")), renamed).unwrap();
    let store = open(&path);
    assert_eq!(store.all(), before);
    assert!(!path.join(format!("{id}{UNFINISHED_END}")).exists());
    assert!(path.join(format!("{}{FILE_END}", damaged.id())).exists(), "damaged files are kept");
    let (token, request) = &requests[1];
    assert_eq!(store.of_applicant(*token).unwrap().details.note, request.details.note);
    assert!(store.of_applicant(RequestToken::generate()).is_none());
    assert_eq!([true, false].map(|is_decided| store.count(is_decided)), [2, 2]);
}

#[test]
fn limits_hold_and_decided_or_deleted_requests_make_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let limits = RegistrationConfig { requests: 3, forms_per_hour: 3, ..limits() };
    let first = request(1, 1).1;
    store.add(first.clone(), &limits).unwrap();
    assert!(matches!(store.add(request(1, 2).1, &limits), Err(AddError::FullForSource)));
    store.claim(first.id()).unwrap().set(refused()).unwrap();
    store.add(request(1, 2).1, &limits).unwrap();
    store.add(request(2, 3).1, &limits).unwrap();
    assert!(matches!(store.add(request(3, 4).1, &limits), Err(AddError::Full)), "3 requests");
    store.claim(first.id()).unwrap().delete("300:a/b").unwrap();
    assert!(store.find(first.id()).is_none());
    let last = request(3, 4).1;
    let bytes = store.table().bytes;
    let exact = bytes + last.encode().len() as u64;
    let too_few = RegistrationConfig { store_bytes: exact - 1, ..limits.clone() };
    assert!(matches!(store.add(last.clone(), &too_few), Err(AddError::Full)));
    store.add(last, &RegistrationConfig { store_bytes: exact, ..limits }).unwrap();
    let on_disk: u64 =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!((store.table().bytes, on_disk), (exact, exact));
    let counts = store.counts();
    let counted = [&counts.received, &counts.refused, &counts.deleted, &counts.accepted].map(|it| it.get());
    assert_eq!((counted, store.bytes()), ([4, 1, 1, 0], exact));
    assert_eq!(open_again(store, directory.path()).table().bytes, exact);
}

fn open_again(store: Arc<RegistrationStore>, path: &Path) -> Arc<RegistrationStore> {
    drop(store);
    open(path)
}

#[test]
fn one_reviewer_at_a_time_decides() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let one = request(1, 1).1;
    store.add(one.clone(), &limits()).unwrap();
    let claim = store.claim(one.id()).unwrap();
    assert!(store.claim(one.id()).is_none());
    assert!(store.claim(request(2, 2).1.id()).is_some(), "another request");
    drop(claim);
    let claim = store.claim(one.id()).unwrap();
    claim.delete("300:a/b").unwrap();
    assert!(claim.request().is_none());
    for gone in [claim.set(refused()), claim.delete("300:a/b")] {
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

#[test]
fn a_request_that_cannot_be_written_is_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let one = request(1, 1).1;
    store.add(one.clone(), &limits()).unwrap();
    // A directory in the place of the file that is renamed.
    fs::create_dir(store.path(one.id(), UNFINISHED_END)).unwrap();
    let claim = store.claim(one.id()).unwrap();
    assert_eq!(claim.set(refused()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    assert_eq!(claim.request().unwrap().state, RequestState::Pending);
    let other = request(2, 2).1;
    fs::create_dir(store.path(other.id(), UNFINISHED_END)).unwrap();
    assert!(matches!(store.add(other.clone(), &limits()), Err(AddError::File(_))));
    assert!(store.find(other.id()).is_none());
}

#[test]
fn another_process_takes_over_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (old, one) = (open(directory.path()), request(1, 1).1);
    old.add(one.clone(), &limits()).unwrap();
    let new = Arc::new(RegistrationStore::open_unlocked(directory.path()).unwrap());
    let unfinished = directory.path().join(format!("{}{UNFINISHED_END}", request(9, 9).1.id()));
    fs::write(&unfinished, "{").unwrap();
    // The old process still writes, and the new one does not.
    assert!(!new.lock().unwrap());
    assert!(matches!(new.add(request(2, 2).1, &limits()), Err(AddError::NotLocked)));
    assert!(new.claim(one.id()).is_none() && unfinished.exists());
    let late = request(3, 3).1;
    old.add(late.clone(), &limits()).unwrap();
    // A reviewer is deciding.
    let claim = old.claim(one.id()).unwrap();
    old.unlock();
    assert!(old.claim(late.id()).is_none());
    assert!(!new.lock().unwrap());
    claim.set(refused()).unwrap();
    drop(claim);
    assert!(matches!(old.add(request(4, 4).1, &limits()), Err(AddError::NotLocked)));
    assert!(new.lock().unwrap());
    assert_eq!(new.find(one.id()).unwrap().state, refused());
    assert!(new.find(late.id()).is_some() && !unfinished.exists());
    new.claim(late.id()).unwrap().delete("300:a/b").unwrap();
    new.add(request(5, 5).1, &limits()).unwrap();
}
