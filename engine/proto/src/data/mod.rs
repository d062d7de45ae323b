//! The predefined value types: what the data of HS_ADMIN, HS_SITE and the others hold.
