use super::*;
use crate::registration::request::RequestToken;
use handle_proto::data::site::{Address, Interface, InterfaceProtocol, SiteFlags};
use handle_proto::data::{ServerBuilder, SiteBuilder};
use std::net::IpAddr;

/// The public half of an RSA key of 2048 bits: an odd number of that length.
fn key(bytes: usize) -> Vec<u8> {
    let counted = |field: &[u8]| [&u32::try_from(field.len()).unwrap().to_be_bytes(), field].concat();
    let number = vec![0xc7; bytes];
    let number = [&[0][..], &number].concat();
    [counted(b"RSA_PUB_KEY"), vec![0, 0], counted(&[1, 0, 1]), counted(&number), vec![0; 4]].concat()
}

fn server() -> ServerBuilder {
    let interfaces = [(InterfaceKind::QUERY, 2641), (InterfaceKind::ADMIN, 2642)];
    ServerBuilder {
        id: 1,
        address: Address::from(IpAddr::from([192, 0, 2, 1])),
        public_key: key(256),
        interfaces: interfaces
            .map(|(kind, port)| Interface::new(kind, InterfaceProtocol::TCP, port))
            .to_vec(),
    }
}

fn site_of(servers: impl IntoIterator<Item = ServerBuilder>) -> SiteBuilder {
    let mut site = SiteBuilder::new();
    site.flags = SiteFlags::PRIMARY;
    servers.into_iter().for_each(|server| {
        site.server(server);
    });
    site
}

fn form() -> ApplicationForm {
    let contact = BundleContact {
        organization: "From the archive".to_owned(),
        email: "archive@example.org".to_owned(),
        ..BundleContact::default()
    };
    let site = site_of([server()]).build();
    let bundle = handle_formats::bundle::archive(site.as_bytes(), &key(256), &contact).unwrap();
    let details =
        ApplicantDetails { name: "Typed".to_owned(), prefix: "10.1045".to_owned(), ..Default::default() };
    ApplicationForm { details, bundle }
}

fn origin() -> RequestOrigin {
    RequestOrigin { token: RequestToken::generate(), unix_s: 1, source: IpAddr::from([192, 0, 2, 1]) }
}

fn limits() -> RegistrationConfig {
    RegistrationConfig::default()
}

fn check(form: &ApplicationForm) -> Result<RegistrationRequest, ApplicationError> {
    form.check(origin(), &limits())
}

fn body(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let part = |(name, bytes): &(&str, &[u8])| {
        let file = if *name == BUNDLE { "; filename=\"sitebndl.zip\"" } else { "" };
        let head = format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        [head.as_bytes(), bytes, b"\r\n"].concat()
    };
    [parts.iter().map(part).collect::<Vec<_>>().concat(), b"--XX--\r\n".to_vec()].concat()
}

fn read(body: Vec<u8>) -> Result<ApplicationForm, ApplicationError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let limits = RegistrationConfig { field_bytes: 64, bundle_bytes: 1024, ..limits() };
    runtime.block_on(ApplicationForm::read("multipart/form-data; boundary=XX", body, &limits))
}

#[test]
fn forms_of_browsers_are_read() {
    let fields: [(&str, &[u8]); 7] = [
        ("prefix", b" 10.1045 "),
        ("organization", "Bücherei".as_bytes()),
        ("name", b"A"),
        ("phone", b""),
        ("email", b"a@example.org"),
        ("note", b"two\r\nlines"),
        (BUNDLE, b"PK\r\n--X\0\xff"),
    ];
    let form = read(body(&fields)).unwrap();
    let details = &form.details;
    assert_eq!((&*details.prefix, &*details.organization), ("10.1045", "Bücherei"));
    assert_eq!(details.note, "two\nlines");
    assert_eq!(form.bundle, b"PK\r\n--X\0\xff");
}

#[test]
fn other_bodies_are_refused() {
    let long = |len| read(body(&[("note", &vec![b'x'; len])])).err();
    assert_eq!([long(64), long(65)], [None, Some(ApplicationError::Long("note".to_owned()))]);
    let bundle = |len| read(body(&[(BUNDLE, &vec![b'x'; len])])).err();
    assert_eq!([bundle(1024), bundle(1025)], [None, Some(ApplicationError::Long(BUNDLE.to_owned()))]);
    for wrong in [
        body(&[("name", b"a"), ("name", b"b")]),
        body(&[("surprise", b"x")]),
        body(&[("name", b"\xff")]),
        b"--XX\r\n\r\n".to_vec(),
        b"prefix=10".to_vec(),
        Vec::new(),
    ] {
        assert_eq!(read(wrong.clone()), Err(ApplicationError::Form), "{}", String::from_utf8_lossy(&wrong));
    }
    let whole = body(&[("name", b"a"), (BUNDLE, b"x")]);
    for len in 0..whole.len() - "--\r\n".len() {
        assert_eq!(read(whole[..len].to_vec()), Err(ApplicationError::Form), "cut to {len}");
    }
}

#[test]
fn what_was_typed_comes_before_what_the_archive_has() {
    let request = check(&form()).unwrap();
    let details = &request.details;
    assert_eq!((&*details.name, &*details.organization), ("Typed", "From the archive"));
    assert_eq!((&*details.email, &*details.prefix), ("archive@example.org", "10.1045"));
    let mut typed = form();
    typed.details.email = "typed@example.org".to_owned();
    assert_eq!(check(&typed).unwrap().details.email, "typed@example.org");
    let read = RegistrationRequest::decode(&request.encode());
    assert_eq!(read.as_ref(), Ok(&request));
    // A later format may have members that this one does not know.
    let text = String::from_utf8(request.encode()).unwrap();
    let later = text.replacen("\"version\": 1", "\"colour\": \"red\", \"version\": 2", 1);
    let refused = RegistrationRequest::decode(later.as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("format 2, and this program reads format 1"), "{refused}");
}

#[test]
fn what_the_applicant_has_to_change_is_named() {
    use ApplicationError as Error;
    let with = |change: fn(&mut ApplicationForm)| {
        let mut form = form();
        change(&mut form);
        check(&form).err()
    };
    assert_eq!(with(|_| ()), None);
    assert_eq!(with(|form| form.bundle.clear()), Some(Error::NoBundle));
    assert_eq!(with(|form| form.bundle.truncate(100)), Some(Error::Bundle(BundleError::Archive)));
    assert_eq!(with(|form| form.details.prefix = "0.NA/10".to_owned()), Some(Error::Prefix));
    assert_eq!(with(|form| form.details.prefix.clear()), None);
    assert_eq!(with(|form| form.details.email = "nobody".to_owned()), Some(Error::Email));
    assert_eq!(with(|form| form.details.note = "two\nlines".to_owned()), None);
    for odd in ["a\nb", "\u{202e}b", "a\u{1b}[2J"] {
        let mut form = form();
        form.details.name = odd.to_owned();
        assert_eq!(check(&form), Err(Error::Characters("name")), "{odd:?}");
    }
    let long = |len| {
        let contact =
            BundleContact { name: "x".repeat(len), email: "a@b.c".to_owned(), ..Default::default() };
        let site = site_of([server()]).build();
        let bundle = handle_formats::bundle::archive(site.as_bytes(), &key(256), &contact).unwrap();
        check(&ApplicationForm { bundle, ..Default::default() }).err()
    };
    assert_eq!([long(1024), long(1025)], [None, Some(Error::Long("name".to_owned()))]);
    let weak = handle_formats::bundle::archive(
        site_of([server()]).build().as_bytes(),
        &key(64),
        &BundleContact::default(),
    );
    assert_eq!(check(&ApplicationForm { bundle: weak.unwrap(), ..form() }), Err(Error::Key));
}

#[test]
fn sites_that_clients_cannot_use_are_refused() {
    let fault = |change: fn(&mut ServerBuilder)| {
        let mut server = server();
        change(&mut server);
        check_site(&site_of([server]).build().view()).err()
    };
    assert_eq!(fault(|_| ()), None);
    assert_eq!(fault(|server| server.address = Address::UNSPECIFIED), Some(SiteFault::NoAddress));
    assert_eq!(fault(|server| server.public_key.clear()), Some(SiteFault::ServerKey));
    assert_eq!(fault(|server| server.public_key = key(64)), Some(SiteFault::ServerKey));
    assert_eq!(fault(|server| server.interfaces.clear()), Some(SiteFault::Interfaces));
    assert_eq!(
        fault(|server| server.interfaces.retain(|it| it.kind == InterfaceKind::ADMIN)),
        Some(SiteFault::Interfaces)
    );
    assert_eq!(fault(|server| server.interfaces[0].port_number = 0), Some(SiteFault::Interfaces));
    assert_eq!(fault(|server| server.interfaces[1].port_number = 65_536), Some(SiteFault::Interfaces));
    assert_eq!(check_site(&site_of([]).build().view()), Err(SiteFault::NoServers));
    let mut mirror = site_of([server()]);
    mirror.flags = SiteFlags(0);
    assert_eq!(check_site(&mirror.build().view()), Err(SiteFault::NotPrimary));
}
