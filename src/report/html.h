// What the pages have in common: their frame and style, sections, and the cells of tables.
#pragma once

#include <string>

namespace bhyt::report {

bool is_page(const std::string& path);                              // whether a file is one of these pages
void write_html(const std::string& page, const std::string& path);  // beside it first, then renamed: never half a file

// Up to the header, <main> open. `notes` is HTML; the others are text.
std::string page_start(const char* kind, const std::string& title, const std::string& lead, const std::string& notes);
std::string page_footer(const char* command);  // when it was written, by what

// Nothing where the body is empty. `grid` is a class of style.inc; lead and body are HTML.
std::string section(const std::string& title, const std::string& lead, const char* grid, const std::string& body);
// The name of the column stands beside the text where the screen is too narrow for columns.
std::string cell(const std::string& name, const std::string& text, const char* kind = "");

}  // namespace bhyt::report
