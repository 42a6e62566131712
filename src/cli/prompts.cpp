#include "cli/prompts.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/json.h"

namespace bhyt::cli {

namespace {

std::string read_all(std::istream& in) { return {std::istreambuf_iterator<char>(in), {}}; }

std::string read_prompt_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::error_code ignored;
  check(in.good() && !std::filesystem::is_directory(file, ignored), "cannot read {}: expected a file with the text to continue", file);
  return read_all(in);
}

std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n,[]", at)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n,[]", at), text.size());
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    check_usage(error == std::errc() && stop == text.data() + end && id >= 0, "a prompt of ids holds numbers from 0, got {}",
                text.substr(at, end - at));
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::string shortened(const std::string& line) { return line.size() <= 80 ? line : line.substr(0, 77) + "..."; }

Prompt parse_line(const std::string& line, bool ids, const std::string& where) {
  const auto j = json_or_discarded<nlohmann::json>(line);
  Prompt p{.text = "", .ids = {}, .where = where};
  if (ids) {
    const auto is_id = [](const nlohmann::json& id) { return id.is_number_integer() && id >= 0 && id <= INT32_MAX; };
    check_usage(j.is_array() && std::all_of(j.begin(), j.end(), is_id), "{}expected an array of token ids, got {}", where, shortened(line));
    p.ids = j.get<std::vector<TokenId>>();
  } else {
    check_usage(j.is_object() && j.contains("prompt") && j["prompt"].is_string(), "{}expected {{\"prompt\": TEXT}}, got {}", where,
                shortened(line));
    p.text = j["prompt"].get<std::string>();
  }
  return p;
}

Prompts parse_lines(const std::string& text, const std::string& file, bool ids) {
  Prompts out{.all = {}, .listed = true};
  std::size_t number = 1;
  for (std::size_t at = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      out.all.push_back(parse_line(line, ids, fmt::format("{}, line {}: ", file, number)));
    at = end + 1;
  }
  check_usage(!out.all.empty(), "{} holds no prompts: expected one a line", file);
  return out;
}

}  // namespace

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, n);
  check(!std::ferror(stdin), "cannot read stdin: {}", std::strerror(errno));
  return text;
}

Prompts read_prompts(const std::string* prompt, const std::string* file, bool ids) {
  if (!prompt && file && file->ends_with(".jsonl")) return parse_lines(read_prompt_file(*file), *file, ids);
  const std::string text = prompt ? *prompt : file ? read_prompt_file(*file) : read_stdin();
  Prompts out;
  out.all.push_back(ids ? Prompt{.text = "", .ids = parse_ids(text), .where = ""} : Prompt{.text = text, .ids = {}, .where = ""});
  return out;
}

}  // namespace bhyt::cli
