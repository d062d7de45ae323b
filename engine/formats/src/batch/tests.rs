use super::*;
use handle_proto::Permissions;
use handle_proto::data::{Admin, AdminPermissions, Vlist};
use handle_proto::value::Ttl;
use proptest::prelude::*;

fn read(text: &str) -> Vec<Result<BatchBlock, InvalidBlock>> {
    BatchReader::new(text.as_bytes()).map(Result::unwrap).collect()
}

fn one(text: &str) -> BatchOperation {
    let blocks = read(text);
    assert_eq!(blocks.len(), 1, "{text:?}: {blocks:?}");
    blocks.into_iter().next().unwrap().unwrap_or_else(|error| panic!("{text:?}: {error}")).operation
}

fn why(text: &str) -> (u64, LineProblem) {
    let blocks = read(text);
    assert_eq!(blocks.len(), 1, "{text:?}: {blocks:?}");
    let invalid = blocks.into_iter().next().unwrap().unwrap_err();
    (invalid.line, invalid.problem)
}

fn url(index: i32, data: &str) -> BatchValue {
    BatchValue {
        index,
        kind: "URL".to_owned(),
        ttl: Ttl::DEFAULT,
        permissions: Permissions::DEFAULT,
        content: ValueContent::Data(data.as_bytes().to_vec()),
    }
}

#[test]
fn every_operation_reads() {
    let text = "\u{feff}CREATE 10/a\n1 URL 86400 1110 UTF8 http://a  b/ \n\nadd 10/b c\r\n2 URL 86400 1110 utf8 x\r\n\r\n\
                Modify 10/m\n  3\tURL  86400 1110 \tUTF8 y\n  \nDELETE 10/d\nDELETE 10/e\n# a comment\nREMOVE 1, 2,3:10/r:s\n";
    let blocks: Vec<_> = read(text).into_iter().map(Result::unwrap).collect();
    let expected = [
        (1, BatchOperation::Create("10/a".into(), vec![url(1, "http://a  b/")])),
        (4, BatchOperation::Add("10/b c".into(), vec![url(2, "x")])),
        (7, BatchOperation::Modify("10/m".into(), vec![url(3, "y")])),
        (10, BatchOperation::Delete("10/d".into())),
        (11, BatchOperation::Delete("10/e".into())),
        (13, BatchOperation::Remove("10/r:s".into(), vec![1, 2, 3])),
    ];
    assert_eq!(blocks, expected.map(|(line, operation)| BatchBlock { line, operation }));
}

#[test]
fn blocks_need_no_empty_line_between_them() {
    let blocks =
        read("CREATE 10/a\n1 URL 86400 1110 UTF8 x\nCREATE 10/b\n1 URL 86400 1110 UTF8 create\nDELETE 10/a");
    let words: Vec<_> = blocks.iter().map(|block| block.as_ref().unwrap().operation.word()).collect();
    assert_eq!(words, ["create", "create", "delete"]);
}

#[test]
fn administrators_have_their_bits_in_the_order_of_batch_files() {
    use AdminPermissions as May;
    // As `hdl-genericbatch` of Handle.Net 9.3.1 does, one bit at a time.
    let order = [
        May::ADD_HANDLE,
        May::DELETE_HANDLE,
        May::ADD_DERIVED_PREFIX,
        May::DELETE_DERIVED_PREFIX,
        May::MODIFY_VALUE,
        May::REMOVE_VALUE,
        May::ADD_VALUE,
        May::MODIFY_ADMIN,
        May::REMOVE_ADMIN,
        May::ADD_ADMIN,
        May::READ_VALUE,
        May::LIST_HANDLES,
    ];
    for (at, permission) in order.into_iter().enumerate() {
        let bits: String = (0..12).map(|bit| if bit == at { '1' } else { '0' }).collect();
        let text = format!("CREATE 10/a\n100 HS_ADMIN 86400 1110 ADMIN 300:{bits}:0.NA/10:x\n");
        let BatchOperation::Create(_, values) = one(&text) else { panic!("create") };
        let ValueContent::Data(data) = &values[0].content else { panic!("data") };
        let admin = Admin::decode(data).unwrap();
        assert_eq!((admin.permissions, admin.reference.index), (permission, 300));
        assert_eq!(admin.reference.handle, b"0.NA/10:x");
    }
}

#[test]
fn lists_may_have_blanks_and_a_semicolon_at_the_end() {
    for text in ["300:10/a;301:10/b", "300:10/a; 301:10/b;", " 300:10/a ;301:10/b ; "] {
        let BatchOperation::Create(_, values) =
            one(&format!("CREATE 10/g\n1 HS_VLIST 86400 1110 list {text}"))
        else {
            panic!("create")
        };
        let ValueContent::Data(data) = &values[0].content else { panic!("data") };
        let members: Vec<_> =
            Vlist::decode(data).unwrap().0.iter().map(|member| member.to_string()).collect();
        assert_eq!(members, ["300:10/a", "301:10/b"], "{text}");
    }
}

#[test]
fn files_are_left_to_the_caller() {
    let BatchOperation::Create(_, values) = one("CREATE 10/a\n300 HS_PUBKEY 86400 1110 FILE my key.bin")
    else {
        panic!("create")
    };
    assert_eq!(values[0].content, ValueContent::File("my key.bin".to_owned()));
    let value = values[0].resolve(|path| Ok::<_, ()>(path.as_bytes().to_vec())).unwrap();
    assert_eq!((value.view().data, value.view().index), (&b"my key.bin"[..], 300));
    assert_eq!(values[0].resolve(|_| Err("gone")), Err("gone"));
}

#[test]
fn only_blanks_and_tabs_around_names_and_data_are_left_out() {
    assert_eq!(
        one("CREATE 10/a\n1 URL 86400 1110 UTF8 \t\u{a0}x\u{2003}\u{a0} \n"),
        BatchOperation::Create("10/a".into(), vec![url(1, "\u{a0}x\u{2003}\u{a0}")])
    );
    assert_eq!(one("REMOVE 1: 10/a\u{3000}\t"), BatchOperation::Remove("10/a\u{3000}".into(), vec![1]));
}

#[test]
fn identities_prove_themselves_by_secret_or_key_file() {
    let BatchOperation::Authenticate(secret) = one("AUTHENTICATE SECKEY:301:10/A:B\npass | word\n\n") else {
        panic!()
    };
    assert_eq!(secret.identity, ValueReference { index: 301, handle: "10/A:B".to_owned() });
    assert!(secret.proof == BatchProof::Secret(Zeroizing::new("pass | word".to_owned())));
    assert!(!format!("{secret:?}").contains("word"));
    let key = |phrase: Option<&str>| {
        BatchProof::KeyFile(
            "dir/adm priv.bin".to_owned(),
            phrase.map(|phrase| Zeroizing::new(phrase.to_owned())),
        )
    };
    for (line, phrase) in
        [("dir/adm priv.bin", None), ("dir/adm priv.bin|a|b", Some("a|b")), ("dir/adm priv.bin|", Some(""))]
    {
        let BatchOperation::Authenticate(read) = one(&format!("authenticate pubkey:300:10/A\n{line}")) else {
            panic!()
        };
        assert!(read.proof == key(phrase), "{line}");
    }
}

#[test]
fn a_secret_is_never_in_what_is_said_about_it() {
    for text in [
        "AUTHENTICATE SECRET:300:10/A\nhunter2\n",
        "AUTHENTICATE 300\nhunter2\n",
        "AUTHENTICATE SECKEY:x:10/A\nhunter2\n",
        "AUTHENTICATE SECKEY:300:nothing\nhunter2\n",
    ] {
        let blocks = read(text);
        assert_eq!(blocks.len(), 1, "{text}");
        assert!(!format!("{blocks:?}").contains("hunter2"), "{blocks:?}");
    }
    for text in [
        "AUTHENTICATE SECKEY:300:10/A\n\nhunter2\n",
        "AUTHENTICATE SECKEY:300:10/A\nfirst\nhunter2\n\n hunter2 x\n",
        "AUTHENTICATE hunter2:300:10/A\n",
        "AUTHENTICATE SECKEY:hunter2\n",
        "AUTHENTICATE SECKEY:300:hunter2\n",
        "AUTHENTICATE hunter2\n\n# seen\nhunter2\n",
        "SESSIONSETUP\nUSESESSION:1\nPASSPHRASE hunter2\n",
        "SESSIONSETUP\nUSESESSION:1\nPASSPHRASE hunter2:\n",
        "SESSIONSETUP\nUSESESSION:1\nhunter2\n",
        "SESSIONSETUP PASSPHRASE:hunter2\n",
        "SESSIONSETUP\nUSESESSION:1\n\nPASSPHRASE:hunter2\n",
    ] {
        let wrong: Vec<_> = read(text).into_iter().filter_map(Result::err).collect();
        assert!(!wrong.is_empty(), "{text}");
        let error_text = format!("{wrong:?} {}", wrong.iter().map(ToString::to_string).collect::<String>());
        assert!(!error_text.contains("hunter2"), "{error_text}");
    }
}

#[test]
fn prefixes_are_homed_at_a_server() {
    let BatchOperation::Home(home) = one("HOME 192.0.2.1:2641:tcp\n0.NA/10\n0.na/20.500\n\n") else {
        panic!("home")
    };
    assert_eq!((home.address.as_str(), home.port, home.protocol.as_str()), ("192.0.2.1", 2641, "TCP"));
    assert_eq!(
        (home.prefixes, home.is_release),
        (vec!["0.NA/10".to_owned(), "0.na/20.500".to_owned()], false)
    );
    for address in ["2001:db8::1", "[2001:db8::1]"] {
        let BatchOperation::Home(home) = one(&format!("UNHOME {address}:2641:HTTP\n0.NA/10")) else {
            panic!("home")
        };
        assert_eq!((home.address.as_str(), home.is_release), ("2001:db8::1", true));
    }
}

#[test]
fn sessions_read() {
    let text = "SESSIONSETUP\nUSESESSION:1\nPUBEXNGKEYFILE:a.bin\nPRIVEXNGKEYFILE:b.bin\nPASSPHRASE:x\nOPTIONS:101\nTIMEOUT:24\n\n";
    let BatchOperation::Session(session) = one(text) else { panic!("session") };
    let expected = SessionBlock {
        is_used: true,
        is_encrypted: true,
        is_authenticated: false,
        falls_back: true,
        timeout_hours: Some(24),
        names_exchange_key: true,
    };
    assert_eq!(session, expected);
    let BatchOperation::Session(off) = one("sessionsetup\nusesession:0") else { panic!("session") };
    assert_eq!(off, SessionBlock::default());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let value =
        |line: &str| format!("CREATE 10/a\n1 URL 86400 1110 UTF8 x\n{line}\n2 URL 86400 1110 UTF8 x\n\n");
    let cases = [
        ("\n\nCREAT 10/a\n1 URL 86400 1110 UTF8 x\n", 3, LineProblem::NoOperation("CREAT".into())),
        ("CREATE\n1 URL 86400 1110 UTF8 x\n", 1, LineProblem::Missing("the handle")),
        ("CREATE 10\n1 URL 86400 1110 UTF8 x\n", 1, LineProblem::NoHandle("10".into())),
        ("CREATE 10/a\n\n", 2, LineProblem::Missing("a value")),
        ("DELETE", 1, LineProblem::Missing("the handle")),
        ("REMOVE 10/a", 1, LineProblem::Missing("index:handle")),
        ("REMOVE 0:10/a", 1, LineProblem::NoNumber("index", "0".into())),
        ("REMOVE 1,,2:10/a", 1, LineProblem::NoNumber("index", "".into())),
        ("HOME 192.0.2.1\n0.NA/10", 1, LineProblem::Missing("address:port:protocol")),
        ("HOME a:2641:TLS\n0.NA/10", 1, LineProblem::Unknown("protocol (TCP, UDP or HTTP)", "TLS".into())),
        ("HOME a:70000:TCP\n0.NA/10", 1, LineProblem::NoNumber("port", "70000".into())),
        ("HOME a:2641:TCP\n10", 2, LineProblem::Unknown("prefix (such as 0.NA/10.1045)", "10".into())),
        ("HOME a:2641:TCP\n", 1, LineProblem::Missing("a prefix")),
        ("AUTHENTICATE SECKEY:300:10/A\n\n", 2, LineProblem::Missing("the secret")),
        ("SESSIONSETUP\nOPTIONS:111\n", 2, LineProblem::Missing("USESESSION")),
        ("SESSIONSETUP\nUSESESSION:2\n", 2, LineProblem::Unknown("setting (0 or 1)", "2".into())),
        ("SESSIONSETUP\nFOO:2\n", 2, LineProblem::Unknown("line of SESSIONSETUP", "FOO".into())),
    ];
    for (text, line, expected) in cases {
        assert_eq!(why(text), (line, expected), "{text:?}");
    }
    for (line, expected) in [
        ("x URL 86400 1110 UTF8 x", LineProblem::NoNumber("index", "x".into())),
        ("0 URL 86400 1110 UTF8 x", LineProblem::NoNumber("index", "0".into())),
        ("+1 URL 86400 1110 UTF8 x", LineProblem::NoNumber("index", "+1".into())),
        ("2147483648 URL 86400 1110 UTF8 x", LineProblem::NoNumber("index", "2147483648".into())),
        ("1 URL -1 1110 UTF8 x", LineProblem::NoNumber("TTL", "-1".into())),
        ("1 URL", LineProblem::Missing("the TTL")),
        ("1 URL 86400 1110", LineProblem::Missing("the kind of data")),
        ("1 URL 86400 111 UTF8 x", LineProblem::Permissions("111".into())),
        ("1 URL 86400 1112 UTF8 x", LineProblem::Permissions("1112".into())),
        ("1 HS_ADMIN 86400 011111110011 ADMIN x", LineProblem::AdminPermissions("011111110011".into())),
        ("1 URL 86400 1110 TEXT x", LineProblem::NoFormat("TEXT".into())),
        ("1 URL 86400 1110 FILE", LineProblem::Missing("the path")),
        ("1 HS_ADMIN 86400 1110 ADMIN 300:1110:10/a", LineProblem::NotTwelve("1110".into())),
        ("1 HS_ADMIN 86400 1110 ADMIN", LineProblem::Missing("the index of the administrator")),
        ("1 HS_VLIST 86400 1110 LIST ;", LineProblem::Missing("the list")),
    ] {
        assert_eq!(why(&value(line)), (3, expected), "{line:?}");
    }
}

#[test]
fn reading_goes_on_behind_what_is_wrong() {
    let blocks = read(
        "CREATE 10/a\n1 URL x 1110 UTF8 x\n2 URL 1 1110 UTF8 x\nDELETE 10/b\n\nFOO\nbar\n\nDELETE 10/c\n",
    );
    let lines: Vec<_> =
        blocks.iter().map(|block| block.as_ref().map(|it| it.line).map_err(|it| it.line)).collect();
    assert_eq!(lines, [Err(2), Ok(4), Err(6), Ok(9)]);
    // An error directly after an invalid block is reported too.
    let blocks = read("CREATE 10/a\n\nCREAT 10/b\n\nDELETE\nDELTE 10/c\n");
    let lines: Vec<_> = blocks.iter().map(|block| block.as_ref().unwrap_err().line).collect();
    assert_eq!(lines, [2, 3, 5, 6]);
}

#[test]
fn a_block_has_so_many_values_and_no_more() {
    for (count, fits) in [(VALUES_COUNT_MAX, true), (VALUES_COUNT_MAX + 1, false)] {
        let values: String = (1..=count).map(|index| format!("{index} URL 86400 1110 UTF8 x\n")).collect();
        let blocks = read(&format!("CREATE 10/a\n{values}\nDELETE 10/b"));
        assert_eq!((blocks.len(), blocks[0].is_ok()), (2, fits), "{count}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_blocks_or_reasons(pieces in prop::collection::vec(prop::sample::select(vec![
        &b"\n"[..], b" ", b"1 URL 86400 1110 UTF8 x", b"CREATE 10/a", b"AUTHENTICATE SECKEY:1:10/a",
        b"SESSIONSETUP", b"USESESSION:1", b"HOME a:1:TCP", b"0.NA/1", b"\xff", b":", b"#",
    ]), 0..40)) {
        let bytes = pieces.concat();
        let lines = bytes.split(|&byte| byte == b'\n').count() as u64;
        let mut last = 0;
        for block in BatchReader::new(&bytes[..]) {
            let line = block.unwrap().map_or_else(|invalid| invalid.line, |block| block.line);
            prop_assert!(line <= lines, "{line} of {lines}");
            prop_assert!(line >= last);
            last = line;
        }
    }
}
