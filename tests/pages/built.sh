mkdir -p target && ln -s /media/programs target/release
