//! Servers whose clocks differ from ours. A preloaded library adds to a server's wall clock what a
//! file in the server's directory says.

use super::*;

/// The source of that library. The file has two doubles: by how many seconds the clock is ahead,
/// and how many seconds it gains in a second. Nothing is added without a file, so not before the
/// server has changed into its directory.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile double *clock_file;
static double began;
static double added(double now) {
    if (!clock_file) {
        int file = open("clock", O_RDONLY);
        if (file < 0) return 0;
        void *page = mmap(0, 2 * sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED) return 0;
        clock_file = page;
        began = now;
    }
    return clock_file[0] + (now - began) * clock_file[1];
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    long long micros = now->tv_sec * 1000000ll + now->tv_usec;
    micros += (long long)(added(micros / 1e6) * 1e6);
    now->tv_sec = micros / 1000000;
    now->tv_usec = micros % 1000000;
    return result;
}
"#;

#[test]
#[ignore = "needs gcc: apt-get install gcc"]
fn clocks_that_are_off_and_clocks_that_go_wrong_are_found() {
    let folder = Folder::new();
    let library = folder.compile(SHIM);
    let fleet = Fleet::with_environment(7, &[], &[("LD_PRELOAD", &library)]);
    let wrong = [(3600.0, 0.0), (-90.0, 0.0), (0.0, 0.05), (0.0, -0.005)];
    for (node, (ahead, gains)) in fleet.iter().zip(wrong) {
        let doubles = [f64::to_ne_bytes(ahead), f64::to_ne_bytes(gains)].concat();
        std::fs::write(node.directory().join("clock"), doubles).expect("a new file");
    }
    let diagnosis = ask_plainly(&fleet.urls());
    println!("{:#}", diagnosis.json);
    assert_eq!(diagnosis.code, 1);
    let skew = |words| [("clock-skew", "warn", words)];
    diagnosis.is(&label(&fleet[0]), &skew("60 min ahead of the nodes' median"));
    diagnosis.is(&label(&fleet[1]), &skew("90 s behind the nodes' median"));
    diagnosis.is(&label(&fleet[2]), &[("clock-rate", "fail", "% faster than ours")]);
    diagnosis.is(&label(&fleet[3]), &[("clock-rate", "warn", "% slower than ours")]);
    for node in fleet.iter().skip(4) {
        diagnosis.is(&label(node), &[]);
    }
}
