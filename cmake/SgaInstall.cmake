# `cmake --install BUILD --prefix PREFIX`: the program, and the strategy SDK for find_package(sgactor). Needs the
# targets `sgactor` and `sga_actors_strategy_sdk` alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(SGA_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR}/sgactor)
set(SGA_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/sgactor)

install(TARGETS sgactor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
# Modules lie beside the program.
if(SGA_HAVE_CUDA)
  install(FILES ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sgactor_cuda.so DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program OPTIONAL)
endif()

install(TARGETS sga_graph_base sga_actors_strategy_sdk
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
# Listed: what a strategy sees is a contract, and each change of it a new SGACTOR_STRATEGY_SDK.
foreach(header
    actors/strategy/options.h actors/strategy/plugin.h actors/strategy/strategy.h
    graph/base/dtype.h graph/base/shape.h graph/base/status.h
    graph/sharding/parameter_rule.h)
  get_filename_component(dir ${header} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/${header} DESTINATION ${SGA_INSTALL_INCLUDEDIR}/${dir} COMPONENT sdk)
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sgactorConfig.cmake.in
  ${CMAKE_BINARY_DIR}/sgactorConfig.cmake
  INSTALL_DESTINATION ${SGA_INSTALL_CMAKEDIR}
  PATH_VARS SGA_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sgactorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sgactorConfig.cmake ${CMAKE_BINARY_DIR}/sgactorConfigVersion.cmake
  DESTINATION ${SGA_INSTALL_CMAKEDIR} COMPONENT sdk)
