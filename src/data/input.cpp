#include "data/input.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "core/check.h"
#include "data/files.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr const char* kReadable = ".jsonl, .ndjson or .txt, plain or with .gz or .zst";

// What the name promises, or nothing when pack cannot read it.
std::optional<InputFile> by_name(const std::string& path) {
  InputFile f{.path = path};
  fs::path p(path);
  if (p.extension() == ".gz")
    f.compression = Compression::gzip;
  else if (p.extension() == ".zst")
    f.compression = Compression::zstd;
  if (f.compression != Compression::none) p = p.stem();
  const std::string e = p.extension().string();
  const bool lines = e == ".jsonl" || e == ".ndjson" || (e == ".json" && f.compression != Compression::none);  // C4's .json.gz
  if (!lines && e != ".txt") return std::nullopt;
  f.records = e == ".txt" ? Records::text : Records::jsonl;
  return f;
}

void add_file(std::vector<InputFile>& files, InputFile f) {
  struct stat s {};
  const bool there = ::stat(f.path.c_str(), &s) == 0;  // by itself: arguments, errno among them, come in any order
  check(there, "cannot read {}: {}", f.path, std::strerror(errno));
  check(S_ISREG(s.st_mode), "cannot read {}: not a regular file", f.path);
  f.bytes = static_cast<std::uint64_t>(s.st_size);
  f.modified = static_cast<std::int64_t>(s.st_mtim.tv_sec) * 1000000000 + s.st_mtim.tv_nsec;
  files.push_back(std::move(f));
}

// Of a folder and those in it, in no order.
std::vector<InputFile> files_inside(const std::string& folder) try {
  std::vector<InputFile> files;
  std::set<fs::path> seen{fs::canonical(folder)};  // links between folders may go in circles: each is read once
  for (auto at = fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink); at != end(at); ++at) {
    if (at->is_directory()) {
      if (!seen.insert(fs::canonical(at->path())).second) at.disable_recursion_pending();
    } else if (auto f = by_name(at->path().string()); f && at->is_regular_file()) {
      add_file(files, std::move(*f));
    }
  }
  return files;
} catch (const fs::filesystem_error& e) {
  throw Error(fmt::format("cannot read {}: {}", e.path1().empty() ? folder : e.path1().string(), e.code().message()));
}

class PlainStream : public InputStream {
 public:
  explicit PlainStream(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    check(fd_ >= 0, "cannot open {}: {}", path, std::strerror(errno));
    (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainStream() override { ::close(fd_); }
  std::size_t read(char* to, std::size_t n) override {
    ssize_t got;
    do got = ::read(fd_, to, n);
    while (got < 0 && errno == EINTR);
    check(got >= 0, "cannot read {}: {}", path_, std::strerror(errno));
    consumed_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }

 private:
  std::string path_;
  int fd_;
};

constexpr std::size_t kCompressed = 1 << 17;

// Any number of gzip members, one after another.
class GzipStream : public InputStream {
 public:
  explicit GzipStream(const std::string& path) : path_(path), in_(path), buffer_(kCompressed) {
    check(inflateInit2(&z_, 15 + 16) == Z_OK, "cannot start zlib");
  }
  ~GzipStream() override { inflateEnd(&z_); }
  std::size_t read(char* to, std::size_t n) override {
    z_.next_out = reinterpret_cast<Bytef*>(to);
    z_.avail_out = static_cast<uInt>(std::min<std::size_t>(n, 1u << 30));
    const uInt room = z_.avail_out;
    while (z_.avail_out == room) {
      if (z_.avail_in == 0) {
        z_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        z_.avail_in = static_cast<uInt>(in_.read(buffer_.data(), buffer_.size()));
        consumed_ = in_.consumed();
        if (z_.avail_in == 0) {
          check(!inside_, "{}: truncated gzip data", path_);
          return 0;
        }
      }
      if (!inside_) inflateReset(&z_);
      inside_ = true;
      const int rc = inflate(&z_, Z_NO_FLUSH);
      check(rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR, "{}: damaged gzip data: {}", path_, z_.msg ? z_.msg : "unknown error");
      inside_ = rc != Z_STREAM_END;
    }
    return room - z_.avail_out;
  }

 private:
  std::string path_;
  PlainStream in_;
  std::vector<char> buffer_;
  z_stream z_{};
  bool inside_ = false;
};

// Any number of zstd frames, one after another, with windows as large as the format allows.
class ZstdStream : public InputStream {
 public:
  explicit ZstdStream(const std::string& path) : path_(path), in_(path), buffer_(kCompressed) {
    ZSTD_DCtx_setParameter(z_.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }
  std::size_t read(char* to, std::size_t n) override {
    ZSTD_outBuffer out{to, n, 0};
    while (out.pos == 0) {
      if (from_.pos == from_.size && !full_) {
        from_ = {buffer_.data(), in_.read(buffer_.data(), buffer_.size()), 0};
        consumed_ = in_.consumed();
        if (from_.size == 0) {
          check(!inside_, "{}: truncated zstd data", path_);
          return 0;
        }
      }
      const std::size_t rc = ZSTD_decompressStream(z_.get(), &out, &from_);
      check(!ZSTD_isError(rc), "{}: damaged zstd data: {}", path_, ZSTD_getErrorName(rc));
      inside_ = rc != 0;
      full_ = inside_ && out.pos == out.size;  // more may be waiting inside the decoder
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* z) const { ZSTD_freeDCtx(z); }
  };
  std::string path_;
  PlainStream in_;
  std::vector<char> buffer_;
  std::unique_ptr<ZSTD_DCtx, Free> z_{ZSTD_createDCtx()};
  ZSTD_inBuffer from_{nullptr, 0, 0};
  bool inside_ = false, full_ = false;
};

}  // namespace

bool named_as_text(const std::string& path) { return by_name(path).has_value(); }

std::vector<std::string> expand_globs(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& p : paths) {
    if (is_there(p) || p.find_first_of("*?[") == std::string::npos) {
      all.push_back(p);  // a file that really has such a name comes first
      continue;
    }
    glob_t g{};
    const int rc = ::glob(p.c_str(), 0, nullptr, &g);
    for (std::size_t i = 0; rc == 0 && i < g.gl_pathc; ++i) all.emplace_back(g.gl_pathv[i]);
    ::globfree(&g);
    check_usage(rc == 0, "no file matches {}", p);
  }
  return all;
}

std::vector<InputFile> find_inputs(const std::vector<std::string>& paths) {
  std::vector<InputFile> files;
  for (const std::string& p : expand_globs(paths)) {
    if (std::error_code ec; !fs::is_directory(p, ec)) {
      const auto f = by_name(p);
      check(f || !is_there(p), "cannot read {}: expected {}{}", p, kReadable,
            fs::path(p).extension() == ".tok" ? " (nor is it a token file: empty, damaged or not readable)" : "");
      add_file(files, f.value_or(InputFile{.path = p}));
      continue;
    }
    std::vector<InputFile> inside = files_inside(p);
    check(!inside.empty(), "nothing to read in {}: expected {} (token files are named one by one, or by a pattern)", p, kReadable);
    std::sort(inside.begin(), inside.end(), [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
    std::move(inside.begin(), inside.end(), std::back_inserter(files));
  }
  return files;
}

std::unique_ptr<InputStream> open_input(const InputFile& file) {
  switch (file.compression) {
    case Compression::gzip: return std::make_unique<GzipStream>(file.path);
    case Compression::zstd: return std::make_unique<ZstdStream>(file.path);
    case Compression::none: break;
  }
  return std::make_unique<PlainStream>(file.path);
}

}  // namespace bhyt
