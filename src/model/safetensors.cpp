#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/check.h"

namespace bhyt {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are read and written in place, little-endian");

constexpr std::uint64_t kMaxHeader = 100'000'000;

struct FileType {
  const char* name;
  int bits;
};
// In the order files are written: widest alignment first.
constexpr FileType kTypes[] = {{"U64", 64},  {"I64", 64}, {"F64", 64},    {"C64", 64},    {"F32", 32},    {"U32", 32},    {"I32", 32},
                               {"BF16", 16}, {"F16", 16}, {"U16", 16},    {"I16", 16},    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
                               {"I8", 8},    {"U8", 8},   {"F6_E3M2", 6}, {"F6_E2M3", 6}, {"F4", 4},      {"BOOL", 8}};

int rank_of(const std::string& dtype) {
  int i = 0;
  for (const auto& t : kTypes) {
    if (dtype == t.name) return i;
    ++i;
  }
  return -1;
}

using PlainJson = nlohmann::json;

// As an error message quotes it: never long, no control characters.
std::string show(const PlainJson& j) {
  std::string s = j.dump(-1, ' ', true);
  return s.size() > 120 ? s.substr(0, 117) + "..." : s;
}
std::string show_name(const std::string& name) {
  const std::string s = show(name);
  return s.ends_with('"') ? s.substr(1, s.size() - 2) : s.substr(1);
}

std::uint64_t unsigned_of(const PlainJson& j, const std::string& what) {
  check(j.is_number_unsigned(), "{} must be a whole number that is not negative, got {}", what, show(j));
  return j.get<std::uint64_t>();
}

// What a tensor's type and shape come to in bytes; refuses anything that does not fit 63 bits.
std::uint64_t bytes_of(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  const int rank = rank_of(dtype);
  check(rank >= 0, "unknown dtype \"{}\"", show_name(dtype));
  std::int64_t bits = kTypes[rank].bits;
  for (auto d : shape) check(!__builtin_mul_overflow(bits, d, &bits), "shape {} overflows", shape_string(shape));
  check(bits % 8 == 0, "shape {} of {} does not fill whole bytes", shape_string(shape), dtype);
  return static_cast<std::uint64_t>(bits) / 8;
}

// Header bytes → JSON, refusing what a DOM would swallow: names given twice, and nesting that no header has.
PlainJson parse_header(const char* begin, const char* end) {
  std::vector<std::set<std::string>> seen;
  const auto strict = [&](int depth, PlainJson::parse_event_t event, PlainJson& parsed) {
    if (event == PlainJson::parse_event_t::object_start || event == PlainJson::parse_event_t::array_start) {
      check(depth <= 2, "header is nested too deeply");
      if (event == PlainJson::parse_event_t::object_start) seen.emplace_back();
    } else if (event == PlainJson::parse_event_t::object_end) {
      seen.pop_back();
    } else if (event == PlainJson::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      check(seen.back().insert(key).second, "header names \"{}\" twice", show_name(key));
    }
    return true;
  };
  // The parser takes a zero byte for the end of its input.
  check(std::find(begin, end, '\0') == end, "header is not JSON (it holds a zero byte)");
  try {
    return PlainJson::parse(begin, end, strict);
  } catch (const PlainJson::exception& e) {
    throw Error(fmt::format("header is not JSON ({})", plain_reason(e)));
  }
}

SafeTensor parse_tensor(const std::string& name, const PlainJson& j) {
  const auto get = [&](const char* key) -> const PlainJson& {
    const auto it = j.find(key);
    check(it != j.end(), "{} is missing", key);
    return *it;
  };
  check(j.is_object(), "description must be an object, got {}", show(j));
  SafeTensor t;
  t.name = name;
  check(get("dtype").is_string(), "dtype must be a text, got {}", show(get("dtype")));
  t.dtype = get("dtype").get<std::string>();
  check(get("shape").is_array(), "shape must be a list, got {}", show(get("shape")));
  for (const auto& d : get("shape")) {
    const std::uint64_t n = unsigned_of(d, "shape");
    check(n <= INT64_MAX, "shape overflows with {}", n);
    t.shape.push_back(static_cast<std::int64_t>(n));
  }
  const PlainJson& offsets = get("data_offsets");
  check(offsets.is_array() && offsets.size() == 2, "data_offsets must be two numbers, got {}", show(offsets));
  t.begin = unsigned_of(offsets[0], "data_offsets");
  t.end = unsigned_of(offsets[1], "data_offsets");
  check(t.begin <= t.end, "data_offsets [{}, {}] run backwards", t.begin, t.end);
  const std::uint64_t need = bytes_of(t.dtype, t.shape);
  check(t.end - t.begin == need, "shape {} of {} needs {} bytes, data_offsets give {}", shape_string(t.shape), t.dtype, need,
        t.end - t.begin);
  return t;
}

}  // namespace

std::string shape_string(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

const char* safetensors_dtype(DType t) {
  switch (t) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f64: return "F64";
    case DType::i64: return "I64";
    case DType::i32: return "I32";
    case DType::u32: return "U32";
    case DType::u16: return "U16";
    case DType::u8: return "U8";
    case DType::i8: return "I8";
    case DType::f8: return "F8_E4M3";
  }
  return "?";
}

std::size_t safetensors_dtype_size(const std::string& dtype) {
  const int rank = rank_of(dtype);
  return rank < 0 || kTypes[rank].bits % 8 != 0 ? 0 : static_cast<std::size_t>(kTypes[rank].bits) / 8;
}

SafeTensors::SafeTensors(const std::filesystem::path& file) : path_(file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "{}: cannot open: {}", file.string(), std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  bytes_ = known ? static_cast<std::size_t>(info.st_size) : 0;
  void* map = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int why = errno;
  ::close(fd);
  check(known, "{}: not a regular file", file.string());
  check(map != MAP_FAILED, "{}: cannot map: {}", file.string(), std::strerror(why));
  map_ = map;
  try {
    parse(static_cast<const std::uint8_t*>(map_));
  } catch (...) {
    if (map_) ::munmap(map_, bytes_);  // the destructor of a half-made object does not run
    throw;
  }
}

SafeTensors::SafeTensors(const void* data, std::size_t bytes, const std::string& name) : path_(name), bytes_(bytes) {
  parse(static_cast<const std::uint8_t*>(data));
}

void SafeTensors::parse(const std::uint8_t* file) try {
  check(bytes_ >= 8, "{} bytes are too few for a safetensors file", bytes_);
  std::uint64_t header = 0;
  std::memcpy(&header, file, 8);
  check(header <= kMaxHeader, "header of {} bytes is over the limit of {}", header, kMaxHeader);
  check(header <= bytes_ - 8, "header of {} bytes does not fit a file of {} (truncated?)", header, bytes_);
  const char* text = reinterpret_cast<const char*>(file) + 8;
  const PlainJson json = parse_header(text, text + header);
  check(json.is_object(), "header must be a JSON object");

  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      check(value.is_object() || value.is_null(), "__metadata__ must map texts to texts");
      for (const auto& [key, v] : value.items()) {
        check(v.is_string(), "__metadata__ must map texts to texts, {} is {}", show_name(key), show(v));
        metadata_[key] = v.get<std::string>();
      }
      continue;
    }
    try {
      tensors_.emplace(name, parse_tensor(name, value));
    } catch (const Error& e) {
      throw Error(fmt::format("tensor {}: {}", show_name(name), e.what()));
    }
  }

  const std::uint64_t data_bytes = bytes_ - 8 - header;
  std::vector<SafeTensor*> order;
  for (auto& [name, t] : tensors_) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  std::uint64_t at = 0;
  for (SafeTensor* t : order) {
    check(t->begin == at, "tensor {} begins at byte {}, expected {} ({})", show_name(t->name), t->begin, at,
          t->begin < at ? "overlap" : "hole");
    check(t->end <= data_bytes, "tensor {} ends at byte {}, the file holds {} (truncated?)", show_name(t->name), t->end, data_bytes);
    t->data = file + 8 + header + t->begin;
    at = t->end;
  }
  check(at == data_bytes, "tensors end at byte {}, the file holds {}", at, data_bytes);
} catch (const Error& e) {
  throw Error(fmt::format("{}: {}", path_.string(), e.what()));
}

SafeTensors::~SafeTensors() {
  if (map_) ::munmap(map_, bytes_);
}

SafeTensors::SafeTensors(SafeTensors&& o) noexcept { *this = std::move(o); }

SafeTensors& SafeTensors::operator=(SafeTensors&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(map_, o.map_);
  std::swap(bytes_, o.bytes_);
  std::swap(tensors_, o.tensors_);
  std::swap(metadata_, o.metadata_);
  return *this;
}

const SafeTensor* SafeTensors::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const SafeTensor& SafeTensors::at(const std::string& name) const {
  const SafeTensor* t = find(name);
  check(t != nullptr, "{}: there is no tensor {}", path_.string(), name);
  return *t;
}

void SafeTensors::release(const SafeTensor& t, std::uint64_t begin, std::uint64_t end) const {
  if (map_) release_pages(static_cast<const char*>(t.data) + begin, end - begin);
}

void release_pages(const void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = at / page * page, last = (at + bytes) / page * page;  // a page that is cut stays for what follows
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void write_safetensors(const std::filesystem::path& file, std::vector<SafeTensorOut> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string where = file.string();
  for (const auto& t : tensors) check(rank_of(t.dtype) >= 0, "{}: tensor {}: unknown dtype \"{}\"", where, t.name, t.dtype);
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const int ra = rank_of(a.dtype), rb = rank_of(b.dtype);
    return ra != rb ? ra < rb : a.name < b.name;
  });
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + PlainJson(metadata).dump() + ",";
  std::set<std::string> seen{"__metadata__"};
  std::uint64_t at = 0;
  for (const auto& t : tensors) {
    check(seen.insert(t.name).second, "{}: tensor {} is given twice", where, t.name);
    const std::uint64_t bytes = bytes_of(t.dtype, t.shape);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", PlainJson(t.name).dump(), t.dtype,
                        fmt::join(t.shape, ","), at, at + bytes);
    at += bytes;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kMaxHeader, "{}: header of {} bytes is over the limit of {}", where, text.size(), kMaxHeader);

  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  check(fd >= 0, "{}: cannot create: {}", where, std::strerror(errno));
  const auto failed = [&](const char* what) { throw Error(fmt::format("{}: cannot {}: {}", where, what, std::strerror(errno))); };
  const auto put = [&](const void* data, std::size_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd, p, std::min<std::size_t>(bytes, 1u << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) failed("write");
      p += n;
      bytes -= static_cast<std::size_t>(n);
    }
  };
  try {
    const std::uint64_t length = text.size();
    put(&length, 8);
    put(text.data(), text.size());
    for (const auto& t : tensors) {
      const std::uint64_t need = bytes_of(t.dtype, t.shape);
      std::uint64_t got = 0;
      t.fill([&](const void* data, std::size_t bytes) {
        got += bytes;
        check(got <= need, "{}: tensor {}: more than its {} bytes were delivered", where, t.name, need);
        put(data, bytes);
      });
      check(got == need, "{}: tensor {}: {} of {} bytes were delivered", where, t.name, got, need);
    }
    if (::fsync(fd) != 0 && errno != EINVAL) failed("sync");  // EINVAL: not a disk file
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) failed("close");
}

}  // namespace bhyt
