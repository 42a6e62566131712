# make install: the program, the library (one archive per layer, bhyt::bhyt for all of them), its headers, a CMake package, configs and docs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(bhyt_all INTERFACE)
target_link_libraries(bhyt_all INTERFACE ${bhyt_layers})
set_target_properties(bhyt_all PROPERTIES EXPORT_NAME bhyt)

install(TARGETS bhyt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS bhyt_all ${bhyt_layers} EXPORT bhyt_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Headers include each other as "core/tensor.h"; users may also write <bhyt/core/tensor.h>.
foreach(layer bhyt_all ${bhyt_layers})
  target_include_directories(${layer} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/bhyt> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${layer} INTERFACE cxx_std_20)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bhyt FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/bhyt)
install(EXPORT bhyt_targets NAMESPACE bhyt:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/bhytConfig.cmake.in ${PROJECT_BINARY_DIR}/bhytConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/bhytConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/bhytConfig.cmake ${PROJECT_BINARY_DIR}/bhytConfigVersion.cmake DESTINATION ${package_dir})

install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/bhyt/configs FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/studies/ DESTINATION ${CMAKE_INSTALL_DATADIR}/bhyt/studies FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
