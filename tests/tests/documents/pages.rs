//! Parts of pages in `docs/operations` that are written from declarations.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

/// Checks that the part of `page` about `subject` is `declared`, or writes it if `REWRITE_PAGES` is
/// set. `module` is the module of this program that writes the part.
pub(crate) fn check_part(page: &str, subject: &str, module: &str, declared: &str) {
    let begin = format!("<!-- {subject}: written by tests/tests/documents/{module}.rs -->\n");
    let end = format!("\n<!-- end of {module} -->\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{page} has no line {begin}"));
    let (part, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("REWRITE_PAGES").is_some() {
        std::fs::write(&path, format!("{before}{begin}{declared}{end}{after}")).unwrap();
        return;
    }
    let command = format!("REWRITE_PAGES=1 cargo test -p handle-tests --test documents {module}");
    let missing = declared.lines().find(|line| !part.lines().any(|one| one == *line));
    assert_eq!(missing, None, "{page} lacks a line: {command}");
    assert_eq!(part, declared, "{page} differs from the declarations: {command}");
}
