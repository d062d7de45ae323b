//! Administration in a service that folds names, under another spelling than that of the creation.

use handle_tests::process::{fail, succeed};
use handle_tests::service_directory::InitialisedService;

/// One record has many spellings, and whoever administers it need not know the first.
#[test]
fn a_handle_is_administered_under_any_spelling() {
    let service = InitialisedService::start();
    let admin = |args: &[&str]| service.hdl_as_admin(args.iter().copied());
    succeed(admin(&["handle", "create", "10.1045/Spelt-Here", "1:URL=https://one.example/"]));
    let (code, refused) =
        fail(admin(&["handle", "create", "10.1045/SPELT-here", "1:URL=https://two.example/"]));
    assert!(code == 6 && refused.contains("already exists"), "{code} {refused}");

    succeed(admin(&["handle", "update", "10.1045/spelt-HERE", "2:DESC=added"]));
    succeed(admin(&["handle", "update", "10.1045/SPELT-HERE", "1:URL=https://three.example/"]));
    for spelling in ["10.1045/Spelt-Here", "10.1045/spelt-here", "10.1045/SPELT-HERE"] {
        service.until_resolved(spelling, 1, "https://three.example/");
        let values = service.resolve(spelling)["values"].as_array().map_or(0, Vec::len);
        assert_eq!(values, 2, "{spelling}");
    }
    succeed(admin(&["handle", "update", "10.1045/sPELT-hERE", "--remove", "1"]));
    service.until_resolved("10.1045/Spelt-Here", 1, "added");
    let published = service.published().join("\n").to_uppercase();
    assert_eq!(published.matches("10.1045/SPELT-HERE").count(), 1, "{published}");
    succeed(admin(&["handle", "delete", "10.1045/spelt-here"]));
    service.until_resolved("10.1045/Spelt-Here", 100, "");
}
