#include "report/html.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>

#include "data/files.h"
#include "report/figure.h"

namespace bhyt::report {

namespace {

// By these a page is known for one of ours.
constexpr const char *kDoctype = "<!doctype html>", *kTitleEnd = " · bhyt report</title>";

constexpr const char* kStyle =
#include "report/style.inc"
    ;

}  // namespace

bool is_page(const std::string& path) {
  std::string start(1 << 16, '\0');  // the names of up to four runs stand in the title
  std::ifstream in(path, std::ios::binary);
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(in.gcount()));
  return start.starts_with(kDoctype) && start.find(kTitleEnd) != std::string::npos;
}

void write_html(const std::string& page, const std::string& path) {
  OutputFile out(path);
  out.write(page.data(), page.size());
  out.commit();
}

std::string page_start(const char* kind, const std::string& title, const std::string& lead, const std::string& notes) {
  return fmt::format(
      "{4}\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">"
      "<title>{0}{5}\n<style>{1}</style></head>\n<body><main>\n<header class=\"top\"><p class=\"kind\">{6}</p><h1>{0}</h1>"
      "<p class=\"verdict\">{2}</p>{3}</header>\n",
      escape(title), kStyle, escape(lead), notes, kDoctype, kTitleEnd, kind);
}

std::string page_footer(const char* command) {
  return fmt::format("<footer>Written {:%Y-%m-%d %H:%M} UTC by {}.</footer>", fmt::gmtime(std::time(nullptr)), command);
}

std::string section(const std::string& title, const std::string& lead, const char* grid, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section><h2>{}</h2>{}<div class=\"{}\">{}</div></section>\n", escape(title),
                     lead.empty() ? "" : fmt::format("<p>{}</p>", lead), grid, body);
}

std::string cell(const std::string& name, const std::string& text, const char* kind) {
  return fmt::format("<td{} data-name=\"{}\">{}</td>", *kind ? fmt::format(R"( class="{}")", kind) : "", escape(name), escape(text));
}

}  // namespace bhyt::report
